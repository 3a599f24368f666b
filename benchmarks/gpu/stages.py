"""The stages of run.py. Whatever is timed has first been compared with the reference.

`checks`: it installs, its tests for a GPU pass. `ceilings`: what this chip can do at most. `lstm`: a layer alone, both
directions, on each path, by slots and steps; `us_per_layer_step` is a step in both directions, input projections
included, `predicted_us` what predict.py expects of the persistent kernel alone. `encoder`: the char encoder. `text`:
whole models on running text, states carried, from lists of tokens to NumPy arrays in the ways of bench_embed, and from
ids on the GPU; ratios are to AllenNLP's own code with --allennlp, else to the reference. `sanitizer`: compute-sanitizer
finds no fault.

`python -m benchmarks.gpu.stages PATH` runs small checks of an LSTM path, for compute-sanitizer to watch.
"""

import dataclasses
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import agreement, bench_embed, common, floor, models
from benchmarks.gpu import predict
from benchmarks.gpu.run import Stage, without_paths
from benchmarks.peers import allennlp
from elmo_fast.ops.cuda import persistent
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.schedule import make_schedule
from tests.support import cuda_ops, gpu_lstm, op_cases

CHECKS = {"install": "pip install --no-index --no-build-isolation --no-deps --no-input -e .",
          "doctor": "elmo_fast.cli doctor", "tests": "pytest -q -m gpu -p no:cacheprovider tests"}
PRODUCTS = {"fp16": (torch.float16, "highest", 8192), "tf32": (torch.float32, "high", 8192),
            "fp32": (torch.float32, "highest", 4096)}  # type, precision, and rows and columns
COPIES = {"HBM": 2048, "L2": 16}  # megabytes read, and as many written: in L2 both fit
SECONDS = {"ceiling": 1.2, "layer": 0.35, "encoder": 1.0}  # for a timing

# ---- the installation and the chip -----------------------------------------------------------------------------------


def program(stage: Stage, *command) -> dict:
    """A program that must succeed, with the end of its output; it has the stage's time."""
    done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, timeout=max(1.0, stage.left()))
    lines = (done.stdout + done.stderr).splitlines()
    return {"passed": done.returncode == 0, "lines": [without_paths(line)[:300] for line in lines[-40:]]}


def checks(stage: Stage) -> None:
    for case, command in CHECKS.items():
        if stage.dry_run and case != "doctor":
            stage.add(case=case, skipped="a dry run has no GPU")
        else:
            stage.attempt(lambda: program(stage, sys.executable, "-m", *command.split()), case=case)


def ceilings(stage: Stage) -> None:
    """Square products of random data (zeros run faster) and copies, both by the libraries."""
    def product(dtype: torch.dtype, precision: str, side: int) -> dict:
        side = 64 if stage.dry_run else side
        a, b = (torch.randn(side, side, device=stage.device, dtype=dtype) for _ in range(2))
        with numerics(precision, a.device):
            timing = stage.measure(lambda: a @ b, SECONDS["ceiling"])
        return {**timing.as_dict(), "tflop_per_s": 2 * side**3 / timing.median / 1e12}

    def copy(megabytes: int) -> dict:
        source = torch.zeros(1 if stage.dry_run else megabytes << 20, dtype=torch.uint8, device=stage.device)
        target = torch.empty_like(source)
        timing = stage.measure(lambda: target.copy_(source), SECONDS["ceiling"])
        return {**timing.as_dict(), "megabytes": megabytes, "gb_per_s": 2 * len(source) / timing.median / 1e9}

    for kind, of_product in PRODUCTS.items():
        stage.attempt(lambda: product(*of_product), case=f"gemm {kind}")
    for level, megabytes in COPIES.items():
        stage.attempt(lambda: copy(megabytes), case=f"copy {level}")


def sanitizer(stage: Stage) -> None:
    """The checks of `lstm` at small size on each path, watched tool by tool."""
    found = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/cuda/bin")
    if stage.dry_run or found is None:
        stage.add(case="sanitizer", skipped="it needs a GPU and compute-sanitizer")
        return
    for path, tool in itertools.product(("persistent", "graph"), ("memcheck", "racecheck")):
        watch = found, "--tool", tool, "--target-processes", "all"
        watched = sys.executable, "-m", "benchmarks.gpu.stages", path
        stage.attempt(lambda: verdict(program(stage, *watch, *watched)["lines"]), needs=5, tool=tool, path=path)


def verdict(lines: list[str]) -> dict:
    """What the tool's output means; the program ends with a line `done`, or says why the path does not run."""
    if reason := re.search(r"^skipped: (.*)$", text := "\n".join(lines), re.MULTILINE):
        return {"skipped": reason[1]}
    counted = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
    passed = bool(counted) and not any(map(int, counted)) and "done" in lines
    return {"passed": passed} if passed else {"passed": False, "log": lines[-20:]}


# ---- a layer of the LSTM --------------------------------------------------------------------------------------------

LIMITS = {"highest": "highest", "high": "high-tf32", "medium": "medium-fp16"}
PATHS = {"graph": tuple(LIMITS), "persistent": ("medium",)}
SLOTS, STEPS = (1, 8, 16, 32, 64), (25, 200, 1000)
BATCH_SIZES = [8] * 4 + [6] * 9 + [3] * 7 + [1] * 10


def check(device: str, sizes: tuple[int, int], precision: str) -> dict:
    """A ragged batch on layers of those cells and values, run plainly, then captured and replayed; both clips fire."""
    case = gpu_lstm.ragged(BATCH_SIZES, *sizes)
    (_, _, c), error, limit = gpu_lstm.compare(case, precision, device=device, times=3)
    clipped = float((c.abs() >= case.clips["cell_clip"]).double().mean())
    return {"error": error, "limit": limit, "clipped_c": clipped, "passed": error <= limit and clipped > 0}


def measure(stage: Stage, weights: tuple, path: str, precision: str, slots: int, steps: int) -> dict:
    """A layer over so many steps of all slots, a third of the rows unique as in text."""
    (dim, projection), random = weights[0][2].shape, functools.partial(torch.randn, device=stage.device)
    x, state = random(max(1, slots * steps // 3), projection), (random(slots, 2 * projection), random(slots, 2 * dim))
    rows, schedule = torch.randint(0, len(x), (2, slots * steps), dtype=torch.int32), make_schedule([steps] * slots)
    timing = stage.measure(lambda: cuda_ops.projected_lstm(x, rows, schedule, state, weights, precision=precision,
                                                           cell_clip=3.0, proj_clip=3.0), SECONDS["layer"])
    found = {**timing.as_dict(), "us_per_layer_step": timing.median / steps * 1e6,
             "tokens_per_s": slots * steps / timing.median}
    if path == "persistent" and (dim, projection) == common.SIZES["original"][:2]:
        found["predicted_us"] = predict.predicted_us(torch.cuda.get_device_name(), slots)
    return found


def why_not(device: str, path: str) -> str | None:
    return persistent.lacks(torch.zeros(0, device=device).device) if path == "persistent" else None


def lstm(stage: Stage) -> None:
    for path, precisions in reversed(PATHS.items()):
        if reason := why_not(stage.device, path):
            stage.add(path=path, skipped=reason)
            continue
        os.environ["ELMO_FAST_CUDA_LSTM"] = path
        sizes = ("tiny",) if stage.dry_run else ("original", "small")
        for precision, size in itertools.product(precisions[::-1], sizes):
            of = dim, projection = common.SIZES[size][:2]
            facts = {"path": path, "precision": precision, "size": size}
            checked = stage.attempt(lambda: check(stage.device, of, precision), needs=3, part="check", **facts)
            if not checked.get("passed"):
                continue
            case = op_cases.lstm_case((projection, dim, projection), lengths=[1])
            weights = op_cases.layer(case.leaves(wanted=[], device=stage.device))
            for steps, slots in [(3, 2)] if stage.dry_run else itertools.product(STEPS, SLOTS):
                stage.attempt(lambda: measure(stage, weights, path, precision, slots, steps), part="time", slots=slots,
                              steps=steps, **facts)
        del os.environ["ELMO_FAST_CUDA_LSTM"]


# ---- models ---------------------------------------------------------------------------------------------------------

TEXT_LIMITS = {**LIMITS, "medium": "medium-bf16"}  # a model whose operands are not bounded takes bf16
TOKENS, CHECKED = 65_536, 384
ROUNDS = 5  # of the text at most


def encoder(stage: Stage) -> None:
    """The text's unique tokens, over and over; FLOP are those of real characters."""
    size = "tiny" if stage.dry_run else "original"
    source = models.build(size).token_source
    tokens = sorted({token for sentence in common.running_text(64 if stage.dry_run else 2000)[0] for token in sentence})
    ids = source.token_ids(tokens)
    with torch.no_grad():
        exact = source.double()(ids[:CHECKED], "reference").numpy()
    source, ids = source.float().to(stage.device), ids.to(stage.device)
    ids = ids.repeat(1 if stage.dry_run else TOKENS // len(ids) + 1, 1)
    flop = floor.encoder_flop(common.standard_options(size), floor.characters_of(tokens)) / len(tokens)

    def measured(backend: str, precision: str) -> dict:
        def call():
            with torch.no_grad(), numerics(precision, ids.device):
                return source(ids, backend)

        error = agreement.relative_error([call()[: len(exact)].cpu().numpy()], [exact])
        limit = agreement.TABLE[(TEXT_LIMITS if backend == "torch" else LIMITS)[precision]]
        found = {"error": error, "limit": limit, "passed": error <= limit}
        if not found["passed"]:
            return found
        timing = stage.measure(call, SECONDS["encoder"])
        return {**found, **timing.as_dict(), "tokens_per_s": len(ids) / timing.median,
                "tflop_per_s": len(ids) * flop / timing.median / 1e12}

    for precision in LIMITS:
        for backend in ("native", "torch"):
            stage.attempt(lambda: measured(backend, precision), backend=backend, precision=precision, tokens=len(ids))


def text(stage: Stage) -> None:
    """The ways of bench_embed, and ours from ids on the device; a precision that disagrees is not timed."""
    size, groups, batch = ("tiny", 2, 4) if stage.dry_run else ("original", 8, 64)
    of, ours = bench_embed.Text.read("running text", groups, batch), models.build(size, backend="auto").to(stage.device)
    limits = {precision: agreement.TABLE[kind] + agreement.TABLE["highest"] for precision, kind in TEXT_LIMITS.items()}
    reference, errors = models.Embedder(models.build(size).to(stage.device)), {}
    setup = bench_embed.Setup(size, batch, "reference", reference, {}, {}, limits)
    for precision in limits:
        embedder = models.Embedder(ours, precision)
        one = dataclasses.replace(setup, ours={precision: embedder})
        found = stage.attempt(lambda: bench_embed.check(one, of, groups)["errors"][precision] | {"passed": True},
                              part="check", precision=precision)
        if found.get("passed"):
            setup.ours[precision], errors[precision] = embedder, found
    with tempfile.TemporaryDirectory() as folder:
        if stage.allennlp:
            files = models.write_files(Path(folder), size)
            peer = allennlp.AllenNlp(stage.allennlp, *files, cuda_device=-stage.dry_run)
            stage.attempt(lambda: bench_embed.check_slow("allennlp against the reference", *(
                bench_embed.run_over(side, of.groups) for side in (peer, reference))), part="check", variant="allennlp")
            setup = dataclasses.replace(setup, peer_name="allennlp", peer=peer, others={"reference": reference})
        stage.save(settings={"text": of.source, **common.text_facts(of.sentences, batch)},
                   times_as_fast_as=setup.peer_name)
        ids = [models.device_ids(group, stage.device) for group in of.groups]
        more = {("from ids on the device", "ours", precision): bench_embed.whole_turn(of, from_ids, embedder, ids)
                for precision, embedder in setup.ours.items()}
        once = common.seconds_per_call(lambda: bench_embed.time_text(setup, of, 1, groups, more=more), 1)
        rounds = int(max(1, min(ROUNDS, 0.6 * stage.left() / once)))
        speeds = bench_embed.time_text(setup, of, rounds, groups, more=more)
        seconds = bench_embed.time_sentence(setup, of, rounds)
    for row in bench_embed.rows_of(setup, of, speeds, seconds, {}, {}, errors):
        stage.add(**row)


def from_ids(embedder: models.Embedder, batches: list[torch.Tensor]) -> None:
    """The model alone, from zero states."""
    embedder.reset_states()
    embedder.bilm.precision = embedder.precision
    with torch.no_grad():
        for ids in batches:
            embedder.bilm(ids)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    if reason := why_not("cuda", sys.argv[1]):
        sys.exit(f"skipped: {reason}")
    os.environ["ELMO_FAST_CUDA_LSTM"] = sys.argv[1]
    assert all(check("cuda", (96, 32), precision)["passed"] for precision in PATHS[sys.argv[1]])
    print("done")
