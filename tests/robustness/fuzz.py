"""Seeded cases of damaged input. A case must give the undamaged result, or a refusal of one line; never anything else.

    python -m tests.robustness.fuzz --cases 20000      # all kinds by turns; counts by ending, defects with their seeds
    python -m tests.robustness.fuzz --kind table --seed 17 --cases 1
"""

import argparse
import collections
import functools
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

import elmo_fast
from elmo_fast.weights.sources import find_model
from tests.robustness import file_cases, text_cases
from tests.robustness.children import calls
from tests.robustness.damage import HOSTILE_NUMBERS, damage_bytes, damage_hdf5, damage_json, damage_zip
from tests.robustness.world import Case, World
from tests.support.files import paths

AT_ONCE = 50  # cases of a kind in a process: a fork takes longer than most of them
SENTENCE = "The children play in the garden .".split()


def digest(*arrays) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in arrays)).hexdigest()


def embed(model: Path) -> bool:
    """Load a directory and embed a sentence: finite vectors, unless the weights are so large that they overflow."""
    elmo = elmo_fast.load(model)
    vectors = elmo.embed([SENTENCE])[0]
    if not np.isfinite(vectors).all():
        largest = max(float(np.abs(values).max()) for values in elmo.read_weights()[2].values())
        assert np.isfinite(largest) and largest > 1e9, "the vectors are not finite"
    return True


def of_options(world: World, folder: Path, rng: random.Random) -> Case:
    model = shutil.copytree(world.model, folder / "model")
    return Case(damage_json(model / "options.json", rng), lambda: embed(model))


def of_weights(world: World, folder: Path, rng: random.Random) -> Case:
    model = shutil.copytree(world.model, folder / "model")
    _, weights = paths(model)
    damage = damage_hdf5(weights, rng, world.secret) if rng.random() < 0.5 else damage_bytes(weights, rng)
    # Numbers in a file without checksums may change; NaN and numbers of another file must not be read.
    return Case(damage, lambda: embed(model), () if damage.startswith(("external", "soft")) else None)


def of_checkpoint(world: World, folder: Path, rng: random.Random) -> Case:
    """A damaged file of a run that is resumed: refused, or the same weights."""
    run_directory = shutil.copytree(world.run, folder / "run")
    files = sorted(path for path in run_directory.rglob("*") if path.suffix in (".pt", ".json", ".txt"))
    file, right = rng.choice(files), (_resumed(world),)
    is_json = file.suffix == ".json" and rng.random() < 0.5
    damage = damage_json(file, rng) if is_json else damage_bytes(file, rng)
    right = None if file.name == "run.json" else right

    def run() -> str:
        world.command("train", run_directory, "--resume", "--max-steps", 6, "--quiet")
        return _run_digest(run_directory)

    return Case(f"{file.name}: {damage}", run, right)


@functools.cache
def _resumed(world: World) -> str:
    copy = shutil.copytree(world.run, world.folder / "resumed")
    world.command("train", copy, "--resume", "--max-steps", 6, "--quiet")
    return _run_digest(copy)


def _run_digest(run_directory: Path) -> str:
    last = max((run_directory / "checkpoints").glob("step-*.pt"))
    weights = torch.load(last, weights_only=True)["weights"]
    return digest(*(weights[name].numpy() for name in sorted(weights)))


def of_archive(world: World, folder: Path, rng: random.Random) -> Case:
    archive = Path(shutil.copy(world.archive, folder / "model.zip"))
    damage = damage_zip(archive, rng) if rng.random() < 0.5 else damage_bytes(archive, rng)

    def run() -> str:
        os.environ["ELMO_FAST_CACHE"] = str(folder / "cache")
        files = find_model(archive)
        outside = [path for path in (files.options_file, files.weight_file) if folder not in path.resolve().parents]
        assert not outside and not (folder.parent / "options.json").exists(), f"unpacked outside: {outside}"
        return hashlib.sha256(files.options_file.read_bytes() + files.weight_file.read_bytes()).hexdigest()

    right = hashlib.sha256(b"".join(path.read_bytes() for path in paths(world.model))).hexdigest()
    return Case(damage, run, None if damage.startswith(("empty", "bomb", "double", "link")) else (right,))


def of_flags(world: World, folder: Path, rng: random.Random) -> Case:
    text, out = folder / "text.txt", folder / "out"
    text.write_text("The children play .\n\nIt rained .\n")
    value = rng.choice((*HOSTILE_NUMBERS, "", "a", "--quiet", "1e9", "10000000", " 3"))
    flag, *command = rng.choice((
        ("--batch-size", "embed", text, out, "--all", "--allow-blank", *world.files(world.model), "--quiet"),
        ("--cuda-device", "embed", text, out, "--all", "--allow-blank", *world.files(world.model), "--quiet"),
        ("--top", "substitutes", text), ("--min-count", "vocab", text, out), ("--max-size", "vocab", text, out),
        *((f"--{name}", "train", out, "--train", world.corpus["train"][0], "--vocab", world.corpus["vocab"], "--quiet",
           "--options-file", world.corpus["options_file"], "--max-steps", 1)
          for name in ("batch-size", "unroll-steps", "negatives", "max-steps", "epochs", "dropout", "clip-norm", "seed",
                       "learning-rate", "log-every", "keep", "accumulate", "warmup-steps", "patience", "workers"))))
    if flag == "--max-steps" and str(value).strip().isdigit():
        value = min(int(value), 3)  # more steps would train for too long
    return Case(f"{command[0]} {flag} {value!r}", lambda: len(world.command(*command, flag, value)))


KINDS = {"options": of_options, "weights": of_weights, "checkpoint": of_checkpoint,
         "archive": of_archive, "fasta": text_cases.of_fasta, "text": text_cases.of_text,
         "compressed": text_cases.of_compressed, "jsonl": text_cases.of_jsonl, "conllu": text_cases.of_conllu,
         "flags": of_flags, **file_cases.KINDS}
if find_spec("pyarrow"):
    KINDS["parquet"] = text_cases.of_parquet


def judge(world: World, kind: str, seeds: Sequence[int]) -> Iterator[tuple[str, str | None]]:
    """The outcome of each case, and the reason if it is a defect, else None."""
    with tempfile.TemporaryDirectory(dir=world.folder) as name:
        cases = []
        for seed in seeds:
            folder = Path(name).resolve() / str(seed)
            folder.mkdir()
            cases.append(KINDS[kind](world, folder, random.Random(f"{kind} {seed}")))
        outcomes = calls([case.run for case in cases], max(case.seconds for case in cases))
        for seed, case, outcome in zip(seeds, cases, outcomes):
            fault = outcome.fault(case.file)
            if fault is None and outcome.kind == "returned" and case.right is not None and (
                    outcome.detail not in case.right):
                fault = "another result than that of the undamaged file"
            yield outcome.kind, fault and f"{kind} {seed} ({case.description}): {fault}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run seeded cases of damaged input.")
    parser.add_argument("--cases", type=int, default=500, metavar="N", help="cases of all kinds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=1e9, help="end after so many, whatever is left")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these kinds; a kind may be repeated")
    arguments = parser.parse_args()
    kinds = arguments.kind or list(KINDS)
    endings: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder).resolve())
        end = time.monotonic() + 60 * arguments.minutes
        ends = {kind: arguments.seed - (-arguments.cases * kinds.count(kind) // len(kinds)) for kind in kinds}
        groups = [(kind, range(begin, min(begin + AT_ONCE, last))) for kind, last in ends.items()
                  for begin in range(arguments.seed, last, AT_ONCE)]
        for kind, seeds in sorted(groups, key=lambda group: group[1].start):
            if time.monotonic() > end:
                break
            for ending, fault in judge(world, kind, seeds):
                endings[kind, "defect" if fault else ending] += 1
                if fault:
                    print(fault, flush=True)
    for kind in ends:
        counts = ", ".join(f"{count:,} {ending}" for (of, ending), count in sorted(endings.items()) if of == kind)
        print(f"{kind}: {counts}")
    return any(ending == "defect" for _, ending in endings)


if __name__ == "__main__":
    sys.exit(main())
