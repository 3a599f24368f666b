"""Stage `lstm`: a layer alone, both directions, on each path: against float64, then timed by slots and steps.

`us_per_layer_step` is a step of the layer in both directions, input projections included; `predicted_us` is what
predict.py expects of the persistent kernel alone on this chip.
`python -m benchmarks.gpu.lstm PATH` runs small checks of a path, for compute-sanitizer to watch.
"""

import itertools
import os
import sys

import torch

from benchmarks import agreement, common
from benchmarks.gpu import predict
from benchmarks.gpu.stage import Stage
from elmo_fast.ops import reference
from elmo_fast.ops.schedule import make_schedule

LIMITS = {"highest": "highest", "high": "high-tf32", "medium": "medium-fp16"}
PATHS = {"graph": tuple(LIMITS), "persistent": ("medium",)}
SLOTS, STEPS, SECONDS = (1, 8, 16, 32, 64), (25, 200, 1000), 0.35
CLIP = 0.3  # low enough for both to fire
LENGTHS = ((9, 1, 17, 4, 0, 30), (12, 3), (5, 5, 1, 8, 2, 7, 19, 3, 11))


def layer(dim: int, projection: int, device: str) -> tuple:
    """Random weights of both directions, of a scale that leaves the gates' linear part."""
    generator = torch.Generator().manual_seed(dim)
    shapes = ((2 * projection, 4 * dim), (4 * dim,), (dim, projection))
    return tuple(tuple((torch.randn(shape, generator=generator) / shape[0] ** 0.5).to(device) for shape in shapes)
                 for _ in range(2))


def run(inputs, rows, schedule, state, weights, **settings):
    """The op as a model calls it on a GPU; on the CPU its graph path without graphs."""
    from elmo_fast.ops.cuda import lstm
    from elmo_fast.ops.schemas import LstmCall

    out, h, c, _ = lstm.run(*LstmCall(inputs, rows, schedule, state, weights, **settings).arguments())
    return out, (h, c)


def moved(tree, *to):
    return tree.to(*to) if isinstance(tree, torch.Tensor) else tuple(moved(each, *to) for each in tree)


def check(device: str, dim: int, projection: int, precision: str) -> dict:
    """The largest relative error over ragged batches, in which sequences start in the middle of a slot."""
    weights, generator = layer(dim, projection, device), torch.Generator().manual_seed(1)
    error = clipped = 0.0
    for lengths in LENGTHS * 2:  # a block of steps is captured the second time it is met, and then replayed
        schedule = make_schedule(lengths, [number % 4 for number in range(len(lengths))])
        x = torch.randn(7, projection, generator=generator)
        rows = torch.randint(0, 7, (2, sum(lengths)), generator=generator, dtype=torch.int32)
        state, initial = (tuple(0.1 * torch.randn(*shape, 2 * width, generator=generator)
                                for width in (projection, dim)) for shape in ((schedule.slots.size,), ()))
        clips = {"cell_clip": CLIP, "proj_clip": CLIP}
        exact = [moved(each, "cpu", torch.float64) for each in (x, state, weights, initial)]
        truth = reference.projected_lstm(exact[0], rows, schedule, *exact[1:3], initial_state=exact[3], **clips)
        found = run(x.to(device), rows, schedule, moved(state, device), weights, precision=precision,
                    initial_state=moved(initial, device), **clips)
        error = max(error, *(agreement.relative_error([ours.cpu()], [theirs])
                             for ours, theirs in zip((found[0], *found[1]), (truth[0], *truth[1]))))
        clipped = max(clipped, float((truth[1][1].abs() >= CLIP).double().mean()))
    limit = agreement.TABLE[LIMITS[precision]]
    return {"error": error, "limit": limit, "clipped_c": clipped, "passed": error <= limit and clipped > 0}


def measure(stage: Stage, weights: tuple, path: str, precision: str, slots: int, steps: int) -> dict:
    """A layer over so many steps of all slots, a third of the rows unique as in text."""
    dim, projection = weights[0][2].shape
    x = torch.randn(max(1, slots * steps // 3), projection, device=stage.device)
    rows = torch.randint(0, len(x), (2, slots * steps), dtype=torch.int32)
    schedule = make_schedule([steps] * slots)
    state = tuple(torch.zeros(slots, 2 * width, device=stage.device) for width in (projection, dim))
    timing = stage.measure(lambda: run(x, rows, schedule, state, weights, precision=precision, cell_clip=3.0,
                                       proj_clip=3.0), SECONDS)
    found = {**timing.as_dict(), "us_per_layer_step": timing.median / steps * 1e6,
             "tokens_per_s": slots * steps / timing.median}
    if path == "persistent" and (dim, projection) == common.SIZES["original"][:2]:
        found["predicted_us"] = predict.predicted_us(torch.cuda.get_device_name(), slots)
    return found


def why_not(device: str, path: str) -> str | None:
    from elmo_fast.ops.cuda import persistent

    return persistent.lacks(torch.zeros(0, device=device).device) if path == "persistent" else None


def work(stage: Stage) -> None:
    sizes = {size: common.SIZES[size][:2] for size in (("tiny",) if stage.dry_run else ("original", "small"))}
    for path, precisions in reversed(PATHS.items()):
        if reason := why_not(stage.device, path):
            stage.add(path=path, skipped=reason)
            continue
        os.environ["ELMO_FAST_CUDA_LSTM"] = path
        for precision in reversed(precisions):
            for size, shape in sizes.items():
                facts = {"path": path, "precision": precision, "size": size}
                checked = stage.attempt(lambda: check(stage.device, *shape, precision), needs=3, part="check", **facts)
                if not checked.get("passed"):
                    continue
                weights = layer(*shape, stage.device)
                for steps, slots in [(3, 2)] if stage.dry_run else itertools.product(STEPS, SLOTS):
                    stage.attempt(lambda: measure(stage, weights, path, precision, slots, steps), part="time",
                                  slots=slots, steps=steps, **facts)
        del os.environ["ELMO_FAST_CUDA_LSTM"]


if __name__ == "__main__":
    if reason := why_not("cuda", sys.argv[1]):
        sys.exit(f"skipped: {reason}")
    os.environ["ELMO_FAST_CUDA_LSTM"] = sys.argv[1]
    assert all(check("cuda", 96, 32, each)["passed"] for each in PATHS[sys.argv[1]])
    print("done")
