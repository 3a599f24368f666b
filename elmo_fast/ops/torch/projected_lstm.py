"""Projected LSTM in plain torch with the input GEMM taken out of the time loop, once for each unique row."""

from collections.abc import Iterator

import torch

from elmo_fast.ops.reference import State, clip, half, restore
from elmo_fast.ops.schemas import LstmCall

_ROWS_AT_ONCE = 1024


def projected_lstm(call: LstmCall) -> tuple[torch.Tensor, State]:
    """As `reference.projected_lstm`."""
    slots = torch.as_tensor(call.schedule.slots, device=call.inputs.device)
    outputs, finals = zip(*(_direction(call, direction, slots) for direction in (0, 1)))
    return torch.cat(outputs, dim=1), tuple(torch.cat(pair, dim=1) for pair in zip(*finals))


def _direction(call: LstmCall, direction: int, slots: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    w, b, w_p = call.weights[direction]
    w_x, w_h = w[: call.width], w[call.width :]
    x = half(call.inputs, direction) if call.rows is None or call.precomputed else call.inputs
    rows = None if call.rows is None else call.rows[direction]
    h, c = (half(part, direction)[slots] for part in call.state)
    initial = starts = None
    if call.initial_state is not None:
        initial = [half(part, direction) for part in call.initial_state]
        starts = torch.as_tensor(call.schedule.sequence_starts, device=x.device)[:, None]
    steps = [h[:0]]
    for first, sizes in _chunks(call.schedule.batch_sizes.tolist()):
        chunk = slice(first, first + sum(sizes))
        z = x[rows[chunk]] if call.precomputed else _input_gemm(x, chunk, rows, w_x, b)
        starts_now = [None] * len(sizes) if initial is None else starts[chunk].split(sizes)
        for z_now, start in zip(z.split(sizes), starts_now):
            running = len(z_now)
            old_h, old_c = h[:running], c[:running]
            if start is not None:
                old_h, old_c = (torch.where(start, new, old) for new, old in zip(initial, (old_h, old_c)))
            new_h, new_c = _cell(z_now, old_h, old_c, w_h, w_p, call.cell_clip, call.proj_clip)
            h = new_h if running == len(h) else torch.cat([new_h, h[running:]])
            c = new_c if running == len(c) else torch.cat([new_c, c[running:]])
            steps.append(new_h)
    return torch.cat(steps), [restore(h, slots), restore(c, slots)]


def _chunks(batch_sizes: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Groups of steps of about `_ROWS_AT_ONCE` rows: (first row, rows of each step)."""
    first, sizes = 0, []
    for size in batch_sizes:
        if sizes and sum(sizes) + size > _ROWS_AT_ONCE:
            yield first, sizes
            first, sizes = first + sum(sizes), []
        sizes.append(size)
    if sizes:
        yield first, sizes


def _input_gemm(x, chunk, rows, w_x, b) -> torch.Tensor:
    """x W + b of the chunk's packed rows, each unique row multiplied once: [rows of the chunk, 4 D]."""
    if rows is None:
        return torch.addmm(b, x[chunk], w_x)
    unique, number = rows[chunk].unique(return_inverse=True)
    return torch.addmm(b, x[unique], w_x)[number]


def _cell(z, h, c, w_h, w_p, cell_clip, proj_clip) -> State:
    """One step of n rows: z [n, 4 D] = x W + b, h [n, P], c [n, D] -> the next h and c."""
    i, j, f, o = torch.addmm(z, h, w_h).chunk(4, dim=1)
    c = clip(torch.addcmul(torch.sigmoid(f + 1) * c, torch.sigmoid(i), torch.tanh(j)), cell_clip)
    m = torch.sigmoid(o) * torch.tanh(c)
    return (m if w_p is None else clip(m @ w_p, proj_clip)), c
