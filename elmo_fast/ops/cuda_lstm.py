"""The projected LSTM on a GPU: chooses the tier."""

import torch

from elmo_fast.ops import cuda_tiers, stepwise_lstm
from elmo_fast.ops.host_device import is_capturing
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule

_ENGINES = {"A": stepwise_lstm.projected_lstm}


def projected_lstm(
    inputs: torch.Tensor,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    precision: str = "highest",
    **settings,
) -> tuple[torch.Tensor, State]:
    """As `reference.projected_lstm`; `rows` may lie on the host. The tier is that of `cuda_tiers.choose`."""
    if is_capturing(inputs.device):
        raise RuntimeError("schedule: expected none while a CUDA graph is captured, since it was made on the host for "
                           "one batch, got one; call the model with ids, or use padded_lstm")
    live = schedule.live
    work = cuda_tiers.Work(len(weights[0][1]) // 4, int(live[0]) if live.size else 0, live.size, precision)
    run = _ENGINES[cuda_tiers.choose(work, inputs.device)]
    return run(inputs, rows, schedule, state, weights, precision=precision, **settings)
