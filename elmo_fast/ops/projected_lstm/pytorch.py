"""Projected LSTM in plain torch, with the input GEMM outside of the time loop and computed once per unique row."""

from collections.abc import Iterator

import torch

from elmo_fast.ops.projected_lstm.arguments import LstmCall
from elmo_fast.ops.projected_lstm.reference import State, clip, half, time_loop

_GEMM_ROWS = 1024


def projected_lstm(call: LstmCall) -> tuple[torch.Tensor, State]:
    """See `reference.projected_lstm`."""
    # Sliced and converted once a call: in every step their gradients would be matrices of all of W.
    recurrent = [(_as_operand(w[call.width :]), _as_operand(w_p)) for w, _, w_p in call.weights]

    def step(direction, z, h, c):
        w_h, w_p = recurrent[direction]
        i, j, f, o = torch.addmm(z, h, w_h).chunk(4, dim=1)  # [n, 4 D]
        c = clip(torch.addcmul(torch.sigmoid(f + 1) * c, torch.sigmoid(i), torch.tanh(j)), call.cell_clip)
        m = torch.sigmoid(o) * torch.tanh(c)
        return (m if w_p is None else clip(m @ w_p, call.proj_clip)), c

    return time_loop(lambda direction: _input_projections(call, direction), step, call.schedule, call.state,
                     call.initial_state)


def _as_operand(weight: torch.Tensor | None) -> torch.Tensor | None:
    """A weight in the type that autocast gives it in each product, if it is on."""
    if weight is None or not torch.is_autocast_enabled(weight.device.type):
        return weight
    return weight.to(torch.get_autocast_dtype(weight.device.type))


def _input_projections(call: LstmCall, direction: int) -> Iterator[torch.Tensor]:
    """Yield x W + b of every step, [n, 4 D]. A GEMM computes consecutive steps of up to `_GEMM_ROWS` rows together."""
    w, b, _ = call.weights[direction]
    x = half(call.inputs, direction) if call.rows is None else call.inputs
    first, sizes = 0, call.schedule.batch_sizes.tolist()
    while sizes:
        count, total = 1, sizes[0]
        while count < len(sizes) and total + sizes[count] <= _GEMM_ROWS:
            total += sizes[count]
            count += 1
        chunk = slice(first, first + total)
        if call.rows is None:
            z = torch.addmm(b, x[chunk], w[: call.width])
        else:
            unique, number = call.rows[direction][chunk].unique(return_inverse=True)
            z = torch.addmm(b, x[unique], w[: call.width])[number]
        yield from z.split(sizes[:count])
        first, sizes = chunk.stop, sizes[count:]
