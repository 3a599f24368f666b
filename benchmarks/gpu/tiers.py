"""Stage `tiers`: the LSTM layers alone, on token vectors that are there, by tier and precision.

Each tier and precision is first compared with the reference in float64, in odd sizes and in those of a published
model, clips lowered until both fire, over ragged batches with carried states; one that is wrong is not timed. A tier that
does not run here says why.
"""

import contextlib
import os
import sys
from unittest import mock

import numpy as np
import torch

from benchmarks import common, models
from benchmarks.agreement import relative_error
from benchmarks.gpu import checks, grid
from benchmarks.gpu import stage as stages

SECONDS = 0.5  # for one case
LOW_CLIP = 0.3
# name: LSTM options of a model whose LSTM is checked
CHECKED = {
    "odd": {"dim": 75, "projection_dim": 33},
    "odd, clips fire": {"dim": 75, "projection_dim": 33, "cell_clip": LOW_CLIP, "proj_clip": LOW_CLIP},
    "small, clips fire": {"dim": 1024, "projection_dim": 128, "cell_clip": LOW_CLIP, "proj_clip": LOW_CLIP},
    "no projection": {"dim": 64, "projection_dim": 64},
    "original, clips fire": {"dim": 4096, "projection_dim": 512, "cell_clip": LOW_CLIP, "proj_clip": LOW_CLIP},
}
DRY_CHECKED = ("odd", "odd, clips fire")
LENGTHS = ((9, 1, 17, 4, 0, 30), (12, 3), (5, 5, 1, 8, 2, 7, 19, 3, 11))


@contextlib.contextmanager
def forced(tier: str):
    """The tier that calls take, whatever the table says."""
    with mock.patch.dict(os.environ, {"ELMO_FAST_CUDA_TIER": tier}):
        yield


def engine(stage: stages.Stage):
    """The op as a model calls it; in a dry run tier A by itself, since the CPU has an engine of its own."""
    from elmo_fast.ops import stepwise_lstm
    from elmo_fast.ops.projected_lstm import projected_lstm

    if not stage.dry_run:
        return lambda *operands, **settings: projected_lstm(*operands, backend="native", **settings)
    return stepwise_lstm.projected_lstm


def layer(sizes: dict, device: str):
    """Random weights of one layer, of a scale that leaves the gates' linear part."""
    dim, projection = sizes["dim"], sizes["projection_dim"]
    generator = torch.Generator().manual_seed(dim)

    def draw(*shape):
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[0] ** 0.5).float().to(device)

    return tuple((draw(2 * projection, 4 * dim), draw(4 * dim), draw(dim, projection) if dim != projection else None)
                 for _ in range(2))


def limit(precision: str, sizes: dict) -> float:
    """The error allowed: `medium` multiplies in fp16 only where a clip, or the lack of a projection, bounds h."""
    if precision != "medium":
        return checks.LIMITS[precision]
    bounded = sizes.get("proj_clip") or sizes["dim"] == sizes["projection_dim"]
    return checks.TABLE["medium-fp16" if bounded else "medium-bf16"]


def check(stage: stages.Stage, name: str, precision: str) -> dict:
    """The largest relative error over batches that carry their states, and how much was clipped."""
    from elmo_fast.ops import reference
    from elmo_fast.ops.schedule import make_schedule

    sizes = CHECKED[name]
    weights = layer(sizes, stage.device)
    clips = {key: sizes.get(key) for key in ("cell_clip", "proj_clip")}
    exact = tuple(tuple(None if each is None else each.double().cpu() for each in one) for one in weights)
    state = truth_state = None
    errors, clipped = [], 0.0
    for _ in range(3):  # a chunk of steps is captured the second time it is met, and replayed from then on
        for lengths in LENGTHS:
            schedule = make_schedule(lengths)
            x = torch.randn(7, sizes["projection_dim"], dtype=torch.float64)
            rows = torch.randint(0, 7, (2, sum(lengths)), dtype=torch.int32)
            start = torch.zeros(len(lengths), 2 * sizes["projection_dim"]), torch.zeros(len(lengths), 2 * sizes["dim"])
            state = carried(state, tuple(each.to(stage.device) for each in start))
            truth_state = carried(truth_state, tuple(each.double() for each in start))
            found, state = engine(stage)(x.float().to(stage.device), rows, schedule, state, weights, precision=precision,
                                         **clips)
            truth, truth_state = reference.projected_lstm(x, rows, schedule, truth_state, exact, **clips)
            for one, other in zip((found, *state), (truth, *truth_state)):
                errors.append(relative_error([one.double().cpu().numpy()], [other.numpy()]))
            if clips["cell_clip"]:
                clipped = float((truth_state[1].abs() >= LOW_CLIP).double().mean())
    fires = not clips["cell_clip"] or clipped > 0
    allowed = limit(precision, sizes)
    return {"errors": [max(errors)], "limit": allowed, "clipped_c": clipped, "passed": max(errors) <= allowed and fires}


def carried(before, zeros):
    """As many rows as `zeros` has: the first of those that were left, zeros for new ones."""
    if before is None:
        return zeros
    return tuple(torch.cat([old[: len(new)], new[len(old):]]) for old, new in zip(before, zeros))


def prepare_on(stage: stages.Stage, bilm, precision: str):
    """Every layer of the model over sentences of one length, words repeating as in text."""
    from elmo_fast.ops.schedule import make_schedule
    from elmo_fast.text.batching import number_tokens

    run, stack = engine(stage), bilm._elmo_lstm
    projection, layers = bilm.options.lstm.projection_dim, bilm.options.lstm.n_layers
    clips = {"cell_clip": bilm.options.lstm.cell_clip, "proj_clip": bilm.options.lstm.proj_clip}

    def prepare(batch: int, length: int):
        distinct, index, lengths = number_tokens(["<S>", *sentence, "</S>"] for sentence in grid.fixed_batch(batch, length))
        schedule = make_schedule(lengths)
        rows = torch.from_numpy(index[schedule.tokens])
        vectors = torch.randn(len(distinct), projection, device=stage.device)
        initial, _ = stack.begin(batch, None, vectors)

        def call():
            x = vectors
            for number in range(layers):
                state = initial[0][number], initial[1][number]
                out, _ = run(x, None if number else rows, schedule, state, stack.layer_weights(number),
                             precision=precision, **clips)
                x = out + x if number else out

        return call

    return prepare


def work(stage: stages.Stage) -> None:
    """`settings` name the size that was timed, for the table of tiers."""
    from elmo_fast.ops import cuda_tiers
    from elmo_fast.ops.precision import PRECISIONS

    bilm = models.build(grid.size(stage)).to(stage.device)
    stage.document["settings"]["dim"] = bilm.options.lstm.dim
    device = torch.device(stage.device)
    for tier in cuda_tiers.TIERS:
        reason = cuda_tiers.why_not(tier, device)
        if reason:
            stage.add(tier=tier, skipped=reason)
            continue
        for precision in PRECISIONS:
            with forced(tier):
                time_if_right(stage, bilm, tier, precision)


def time_if_right(stage: stages.Stage, bilm, tier: str, precision: str) -> None:
    facts = {"tier": tier, "precision": precision}
    reason = None if stage.dry_run else reason_against(tier, checked_work(stage, precision), stage.device)
    if reason:
        stage.add(**facts, skipped=reason)
        return
    right = True
    for name in DRY_CHECKED if stage.dry_run else CHECKED:
        right &= bool(stage.attempt({**facts, "check": name}, lambda: check(stage, name, precision)).get("passed"))
    if right:
        timing = grid.Grid(stage, f"tier {tier}", prepare_on(stage, bilm, precision), {**facts, "part": "lstm"},
                           seconds=SECONDS)
        timing.run([shape for shape in grid.shapes(stage) if stage.dry_run or fits(stage, bilm, tier, precision, *shape)])


def checked_work(stage: stages.Stage, precision: str):
    """The least that a tier must be able to do here to be checked."""
    from elmo_fast.ops.cuda_tiers import Work

    return Work(CHECKED["odd"]["dim"], CHECKED["odd"]["projection_dim"], 1, 30, precision, "bf16")


def reason_against(tier: str, work, device: str) -> str | None:
    from elmo_fast.ops import cuda_tiers

    return cuda_tiers.why_not(tier, torch.device(device, torch.cuda.current_device()), work)


def fits(stage: stages.Stage, bilm, tier: str, precision: str, batch: int, length: int) -> bool:
    """Whether the tier can run the shape; records why where it cannot."""
    from elmo_fast.ops import cuda_lstm, lstm_operands

    lstm = bilm.options.lstm
    weights = lstm_operands.flat_weights(bilm._elmo_lstm.layer_weights(0))
    live = np.full(length + 2, batch)
    work = cuda_lstm.work_of(live, weights, lstm.projection_dim, precision, lstm_operands.limit(lstm.proj_clip))
    reason = reason_against(tier, work, stage.device)
    if reason:
        stage.add(variant=f"tier {tier}", tier=tier, precision=precision, batch=batch, length=length, skipped=reason)
    return not reason


if __name__ == "__main__":
    sys.exit(stages.run("tiers", work, stages.parser(__doc__).parse_args(), strict=True))
