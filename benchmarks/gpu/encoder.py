"""Stage `encoder`: the char-CNN and one highway layer, original size, on many distinct tokens of English lengths.

Each path is compared with the float64 reference first, then timed by turns with the others on the same tokens: the
kernels, the plain torch path, and that path under torch.compile. `share_of_floor` is against the ceilings measured in
this run (device copy, products of that precision), `memory_ratio` is the peak over inputs and result.
"""

import functools
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import agreement, common, floor
from benchmarks.gpu import ceilings, clock
from benchmarks.gpu import stage as stages
from benchmarks.gpu.compiled import compiler

TOKENS, FEW_TOKENS, CHECKED = 65_536, 512, 384
DRY_TOKENS, DRY_CHECKED = 48, 48
SECONDS = 1.0  # for one case
LIMITS = {"highest": "highest", "high": "high-tf32", "medium": "medium-fp16"}
PRODUCTS = {"highest": "fp32", "high": "tf32", "medium": "fp16"}


@dataclass(frozen=True)
class Case:
    """One op, fast and by the reference, its inputs and weights, its count for a token by precision."""

    name: str
    inputs: torch.Tensor
    weights: tuple
    count: dict
    call: object
    reference: object
    checked: int

    @functools.cached_property
    def exact(self) -> torch.Tensor:
        """The reference's first rows in float64 on the CPU."""
        few = self.inputs[: self.checked].cpu()
        few = few.double() if few.is_floating_point() else few
        return self.reference(few, *_each(self.weights, lambda part: part.cpu().double()))


def _each(tree, change):
    if isinstance(tree, torch.Tensor):
        return change(tree)
    return type(tree)(_each(part, change) for part in tree) if isinstance(tree, (list, tuple)) else tree


def token_ids(count: int, device: str) -> tuple[torch.Tensor, np.ndarray]:
    """Character ids [count, 50] of made-up tokens whose lengths are those of the text's distinct tokens, and these."""
    from elmo_fast.text.characters import encode_tokens, to_model_ids

    sentences, _ = common.running_text(2000)
    sizes = floor.characters_of(sorted({token for sentence in sentences for token in sentence})) - 2
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.choice(sizes, count), 1, 48)
    tokens = [bytes(rng.integers(97, 123, size, dtype=np.uint8)).decode() for size in sizes]
    return torch.from_numpy(to_model_ids(encode_tokens(tokens))).long().to(device), sizes + 2


def cases(count: int, stage: stages.Stage) -> list[Case]:
    from elmo_fast.ops import reference
    from elmo_fast.ops.char_cnn import char_cnn
    from elmo_fast.ops.highway import highway

    options = common.standard_options("tiny" if stage.dry_run else "original")
    filters_of, dim = options["char_cnn"]["filters"], options["char_cnn"]["embedding"]["dim"]
    size, checked = sum(each for _, each in filters_of), DRY_CHECKED if stage.dry_run else CHECKED
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, spread):
        return (torch.randn(shape, generator=generator) * spread).to(stage.device)

    filters = [(draw(1, width, dim, each, spread=(width * dim) ** -0.5), draw(each, spread=0.1)) for width, each in filters_of]
    ids, characters = token_ids(count, stage.device)
    layer = [draw(*shape, spread=size**-0.5 if len(shape) > 1 else 0.1) for shape in ((size, size), (size,)) * 2]
    return [
        Case("char_cnn", ids, (draw(261, dim, spread=1.0), filters, "relu"),
             {each: floor.char_cnn_count(options, characters, each) for each in LIMITS}, char_cnn, reference.char_cnn,
             checked),
        Case("highway", draw(count, size, spread=1.0), tuple(layer),
             {each: floor.highway_count(options, each) for each in LIMITS}, highway, reference.highway,
             checked),
    ]


def paths(stage: stages.Stage, case: Case, precision: str) -> dict:
    """Calls by path that run where the stage runs; each returns the op's result."""
    from elmo_fast.ops.backend import why_not
    from elmo_fast.ops.precision import numerics

    bounded = precision == "medium"
    inputs = case.inputs.half() if bounded and case.inputs.is_floating_point() and not stage.dry_run else case.inputs
    def run(op, backend, values):
        with torch.no_grad(), numerics(precision, values.device):
            return op(values, *case.weights, backend=backend, precision=precision, bounded=bounded)

    found = {"torch": functools.partial(run, case.call, "torch", case.inputs)}
    if len(case.inputs) != FEW_TOKENS:
        compiled = torch.compile(case.call, dynamic=False, **compiler(stage))
        found["torch compiled"] = functools.partial(run, compiled, "torch", case.inputs)
    if why_not(case.name, "native", [torch.empty(0, device=stage.device)]) is None:
        found = {"native": functools.partial(run, case.call, "native", inputs), **found}
    return found


def check(case: Case, path: str, precision: str, call) -> dict:
    """The first rows against float64; what nobody writes is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    try:
        found = call()[: case.checked]
    finally:
        torch.use_deterministic_algorithms(False)
    error = agreement.relative_error([found.double().cpu().numpy()], [case.exact.numpy()])
    # PyTorch's own 16-bit path multiplies bf16
    limit = agreement.TABLE["medium-bf16" if precision == "medium" and path != "native" else LIMITS[precision]]
    return {"error": error, "limit": limit, "passed": bool(error <= limit)}


def measure(stage: stages.Stage, case: Case, precision: str, call, chip) -> dict:
    tokens, began = len(case.inputs), time.perf_counter()
    call()
    clock.synchronize(stage.device)
    first = time.perf_counter() - began
    memory = peak_ratio(case, call) if stage.device == "cuda" else {}
    timing = clock.measure(call, stage.device, min(SECONDS, max(0.05, stage.left())))
    speed = tokens / timing.median
    share = {} if chip is None else {"share_of_floor": speed / case.count[precision].tokens_per_s(chip, precision)}
    return {"first_call_seconds": first, **timing.as_dict(), "tokens_per_s": speed, **share, **memory}


def peak_ratio(case: Case, call) -> dict:
    """Peak memory of a call over what its inputs and result take."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    held = case.inputs.nbytes + result.nbytes
    return {"memory_ratio": (torch.cuda.max_memory_allocated() - before + case.inputs.nbytes) / held}


def measured_chip(stage: stages.Stage):
    """The ceilings of this chip in this run; None in a dry run."""
    if stage.dry_run:
        return None
    side = 8192
    flops = {name: 1e12 * ceilings.product(stage, kind, *(3 * (side // (2 if kind == "fp32" else 1),)))["tflop_per_s"]
             for name, kind in PRODUCTS.items()}
    chip = floor.Chip("measured", flops, 1e9 * ceilings.copy(stage)["gb_per_s"])
    stage.document["settings"]["ceilings"] = {"flops": chip.flops, "read": chip.read}
    return chip


def work(stage: stages.Stage) -> None:
    chip = measured_chip(stage)
    for count in (DRY_TOKENS,) if stage.dry_run else (TOKENS, FEW_TOKENS):
        for case in cases(count, stage):
            for precision in LIMITS:
                for path, call in paths(stage, case, precision).items():
                    facts = {"case": case.name, "variant": path, "precision": precision, "tokens": count}
                    if stage.left() < 2 * SECONDS and not stage.dry_run:
                        stage.add(**facts, skipped=f"{max(0.0, stage.left()):.1f} s are left")
                        continue
                    done = stage.attempt({**facts, "part": "check"}, functools.partial(check, case, path, precision, call))
                    if done.get("passed"):
                        stage.attempt({**facts, "part": "time"}, functools.partial(measure, stage, case, precision, call, chip))
                torch._dynamo.reset()


if __name__ == "__main__":
    sys.exit(stages.run("encoder", work, stages.parser(__doc__).parse_args(), strict=True))
