"""One layer of the two-direction projected LSTM: chooses the backend."""

import torch

from elmo_fast.ops import reference, torch_projected_lstm
from elmo_fast.ops.backend import resolve
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule


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
) -> tuple[torch.Tensor, State]:
    """See `reference.projected_lstm`; `backend` as in `elmo_fast.ops.backend`."""
    chosen = resolve("projected_lstm", backend, inputs.device)
    run = {"reference": reference.projected_lstm, "torch": torch_projected_lstm.projected_lstm}[chosen]
    return run(inputs, rows, schedule, state, weights,
               cell_clip=cell_clip, proj_clip=proj_clip, restart=restart)
