"""One layer of the two-direction projected LSTM: chooses the backend."""

import functools
import logging

import torch

from elmo_fast.ops import native_cpu, native_training, reference, torch_projected_lstm
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.checks import check_projected_lstm
from elmo_fast.ops.precision import full_precision
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule

logger = logging.getLogger(__name__)


def projected_lstm(
    inputs: torch.Tensor,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    restart: State | None = None,
    backend: str = "auto",
    precision: str = "highest",
) -> tuple[torch.Tensor, State]:
    """See `reference.projected_lstm`; `backend` as in `elmo_fast.ops.backend`. 16-bit weights compute in fp32.

    `precision` is what the native engine computes in, where this machine has it; the torch operations of the other
    backends follow `elmo_fast.ops.precision.numerics`.
    """
    check_projected_lstm(inputs, rows, schedule, state, weights, cell_clip, proj_clip, restart)
    operands = inputs, *state, *weights[0], *weights[1], *(restart or ())
    chosen = resolve("projected_lstm", backend, *operands)
    clips = {"cell_clip": cell_clip, "proj_clip": proj_clip, "restart": restart}
    if chosen == "native" and needs_gradient(operands):
        return native_training.projected_lstm(inputs, rows, schedule, state, weights, **clips)
    if chosen == "native":
        return native_cpu.projected_lstm(inputs, rows, schedule, state, weights, precision=on_cpu(precision), **clips)
    run = reference.projected_lstm if chosen == "reference" else torch_projected_lstm.projected_lstm
    full = tuple(tuple(map(full_precision, direction)) for direction in weights)
    return run(inputs, rows, schedule, state, full, **clips)


def on_cpu(precision: str) -> str:
    """`precision`, or `highest` where the processor has no 16-bit tile products; says so once."""
    if native_cpu.runs_precision(precision):
        return precision
    _log_once(precision)
    return "highest"


@functools.cache
def _log_once(precision: str) -> None:
    logger.info("precision %r runs as 'highest': this processor has no AMX", precision)
