"""Stage `lstm`: a layer alone, both directions, on each path: against float64, then timed by slots and steps.

`us_per_layer_step` is a step of the layer in both directions, input projections included; `predicted_us` is what
predict.py expects of the persistent kernel alone on this chip.
`python -m benchmarks.gpu.lstm PATH` runs small checks of a path, for compute-sanitizer to watch.
"""

import functools
import itertools
import os
import sys

import torch
from torch.utils._pytree import tree_map

from benchmarks import agreement, common
from benchmarks.gpu import predict
from benchmarks.gpu.run import Stage
from elmo_fast.ops import reference
from elmo_fast.ops.schedule import make_schedule

LIMITS = {"highest": "highest", "high": "high-tf32", "medium": "medium-fp16"}
PATHS = {"graph": tuple(LIMITS), "persistent": ("medium",)}
SLOTS, STEPS, SECONDS = (1, 8, 16, 32, 64), (25, 200, 1000), 0.35
CLIP = 0.3  # low enough for both to fire
LENGTHS = 9, 1, 17, 4, 0, 30, 12, 3, 5, 1  # ragged, in slots by turns: sequences start in the middle of one


def draw(dim: int, projection: int, unique: int, slots: int) -> tuple:
    """Random inputs, state, weights (of a scale that leaves the gates' linear part), and initial state, in float64."""
    normal = functools.partial(torch.randn, generator=torch.Generator().manual_seed(dim), dtype=torch.float64)
    shapes = (2 * projection, 4 * dim), (4 * dim,), (dim, projection)
    weights = tuple(tuple(normal(shape) / shape[0] ** 0.5 for shape in shapes) for _ in range(2))
    state, initial = (tuple(normal(*rows, 2 * size) / 10 for size in (projection, dim)) for rows in ((slots,), ()))
    return normal(unique, projection), state, weights, initial


def run(inputs, rows, schedule, state, weights, **settings):
    """The op as a model calls it on a GPU; on the CPU its graph path without graphs."""
    from elmo_fast.ops.cuda import lstm
    from elmo_fast.ops.schemas import LstmCall

    out, h, c, _ = lstm.run(*LstmCall(inputs, rows, schedule, state, weights, **settings).arguments())
    return out, (h, c)


def check(device: str, dim: int, projection: int, precision: str) -> dict:
    """The largest relative error of a ragged batch, run plainly, then captured and replayed; both clips fire."""
    schedule = make_schedule(LENGTHS, [number % 4 for number in range(len(LENGTHS))])
    x, state, weights, initial = exact = draw(dim, projection, 7, schedule.slots.size)
    rows = torch.randint(0, 7, (2, sum(LENGTHS)), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    out, (h, c) = reference.projected_lstm(x, rows, schedule, state, weights, cell_clip=CLIP, proj_clip=CLIP,
                                             initial_state=initial)
    x, state, weights, initial = tree_map(lambda part: part.to(device, torch.float32), exact)
    found = [run(x, rows, schedule, state, weights, cell_clip=CLIP, proj_clip=CLIP, initial_state=initial,
                 precision=precision) for _ in range(3)]
    error = max(agreement.relative_error([ours.cpu()], [theirs])
                for outputs, final in found for ours, theirs in zip((outputs, *final), (out, h, c)))
    limit, clipped = agreement.TABLE[LIMITS[precision]], float((c.abs() >= CLIP).double().mean())
    return {"error": error, "limit": limit, "clipped_c": clipped, "passed": error <= limit and clipped > 0}


def measure(stage: Stage, operands: tuple, path: str, precision: str, slots: int, steps: int) -> dict:
    """A layer over so many steps of all slots, a third of the rows unique as in text."""
    x, state, weights, _ = operands
    x, state = x[: max(1, slots * steps // 3)], tuple(part[:slots] for part in state)
    rows, schedule = torch.randint(0, len(x), (2, slots * steps), dtype=torch.int32), make_schedule([steps] * slots)
    timing = stage.measure(lambda: run(x, rows, schedule, state, weights, precision=precision, cell_clip=3.0,
                                       proj_clip=3.0), SECONDS)
    found = {**timing.as_dict(), "us_per_layer_step": timing.median / steps * 1e6,
             "tokens_per_s": slots * steps / timing.median}
    if path == "persistent" and weights[0][2].shape == common.SIZES["original"][:2]:
        found["predicted_us"] = predict.predicted_us(torch.cuda.get_device_name(), slots)
    return found


def why_not(device: str, path: str) -> str | None:
    from elmo_fast.ops.cuda import persistent

    return persistent.lacks(torch.zeros(0, device=device).device) if path == "persistent" else None


def work(stage: Stage) -> None:
    for path, precisions in reversed(PATHS.items()):
        if reason := why_not(stage.device, path):
            stage.add(path=path, skipped=reason)
            continue
        os.environ["ELMO_FAST_CUDA_LSTM"] = path
        models = ("tiny",) if stage.dry_run else ("original", "small")
        for precision, size in itertools.product(precisions[::-1], models):
            shape, facts = common.SIZES[size][:2], {"path": path, "precision": precision, "size": size}
            checked = stage.attempt(lambda: check(stage.device, *shape, precision), needs=3, part="check", **facts)
            if not checked.get("passed"):
                continue
            operands = tree_map(lambda part: part.to(stage.device, torch.float32),
                                draw(*shape, max(SLOTS) * max(STEPS) // 3, max(SLOTS)))
            for steps, slots in [(3, 2)] if stage.dry_run else itertools.product(STEPS, SLOTS):
                stage.attempt(lambda: measure(stage, operands, path, precision, slots, steps), part="time", slots=slots,
                              steps=steps, **facts)
        del os.environ["ELMO_FAST_CUDA_LSTM"]


if __name__ == "__main__":
    if reason := why_not("cuda", sys.argv[1]):
        sys.exit(f"skipped: {reason}")
    os.environ["ELMO_FAST_CUDA_LSTM"] = sys.argv[1]
    assert all(check("cuda", 96, 32, precision)["passed"] for precision in PATHS[sys.argv[1]])
    print("done")
