"""The projected LSTM on a GPU: chooses the tier.

Registered with `torch.library` as `torch.ops.elmo_fast.cuda_lstm`, so that the choice is made when a call runs and not
when it is compiled.
"""

import numpy as np
import torch

from elmo_fast.ops import cuda_tiers, native_cuda_lstm, stepwise_lstm
from elmo_fast.ops.cuda_layer import name_of
from elmo_fast.ops.host_device import is_capturing
from elmo_fast.ops.lstm_operands import operand_type
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schedule import Schedule

_NATIVE = {"B": native_cuda_lstm.step_kernel, "C": native_cuda_lstm.persistent}

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_library.define("cuda_lstm" + stepwise_lstm.SIGNATURE)


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
    precision: str = "highest",
) -> tuple[torch.Tensor, State]:
    """As `reference.projected_lstm`; `rows` may lie on the host. The tier is that of `cuda_tiers.choose`."""
    if is_capturing(inputs.device):
        raise RuntimeError("schedule: expected none while a CUDA graph is captured, since it was made on the host for "
                           "one batch, got one; call the model with ids, or use padded_lstm")
    return stepwise_lstm.through(torch.ops.elmo_fast.cuda_lstm, inputs, rows, schedule, state, weights,
                                 (cell_clip, proj_clip), restart, precision)


def work_of(live: np.ndarray, weights: list[torch.Tensor], projection: int, precision: str,
            proj_clip: float) -> cuda_tiers.Work:
    """What a call asks for; `weights` as `lstm_operands.flat_weights` gives them."""
    return cuda_tiers.Work(
        len(weights[1]) // 4, projection, int(live[0]) if live.size else 0, int(np.count_nonzero(live)), precision,
        name_of(operand_type(weights, precision, proj_clip)), is_projected=len(weights) == 6,
        edits_count=not any(each.is_inference() for each in weights))


def _run(inputs, rows, live, starts, h, c, weights, precision, cell_clip, proj_clip, restart_h, restart_c):
    work = work_of(live.numpy(), weights, h.shape[1] // 2, precision, proj_clip)
    tier = cuda_tiers.choose(work, inputs.device)
    if tier == "A":
        return stepwise_lstm.run(inputs, rows, live, starts, h, c, weights, precision, cell_clip, proj_clip, restart_h,
                                 restart_c)
    half, lanes = len(weights) // 2, work.lanes
    directions = tuple((*each, None)[:3] for each in (weights[:half], weights[half:]))
    schedule = Schedule(np.arange(lanes), live.numpy(), np.empty((2, 0), np.int32),
                        np.empty(0, bool) if starts is None else starts.numpy())
    out, state = _NATIVE[tier](
        inputs, rows, schedule, (h[:lanes], c[:lanes]), directions, cell_clip=cell_clip, proj_clip=proj_clip,
        restart=None if restart_h is None else (restart_h, restart_c), operand=work.operand)
    # lanes that never run keep their state
    return out, *(new if len(old) == lanes else torch.cat([new, old[lanes:].float()]) for new, old in zip(state, (h, c)))


for _kind in ("CUDA", "CPU"):
    _library.impl("cuda_lstm", _run, _kind)
torch.library.register_fake("elmo_fast::cuda_lstm", stepwise_lstm.fake, lib=_library)
