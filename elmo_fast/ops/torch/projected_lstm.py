"""Projected LSTM in plain torch with the input products taken out of the time loop, once for each unique row."""

import torch

from elmo_fast.ops.reference import LstmWeights, State, clip, half, restore
from elmo_fast.ops.schedule import Schedule

_ROWS_AT_ONCE = 1024


def projected_lstm(
    inputs: torch.Tensor,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    initial_state: State | None = None,
    precomputed: bool = False,
) -> tuple[torch.Tensor, State]:
    """As `reference.projected_lstm`."""
    slots = torch.as_tensor(schedule.slots, device=inputs.device)
    starts = None if initial_state is None else torch.as_tensor(schedule.sequence_starts, device=inputs.device)[:, None]
    outputs, finals = [], []
    for direction, (w, b, w_p) in enumerate(weights):
        before = tuple(half(each, direction)[slots] for each in state)
        fresh = None if initial_state is None else tuple(half(each, direction) for each in initial_state)
        x = half(inputs, direction) if rows is None or precomputed else inputs
        width = len(w) - state[0].shape[1] // 2
        cell = _Cell(w[width:], w_p, cell_clip, proj_clip)
        steps = [before[0][:0]]
        for first, sizes in _chunks(schedule.batch_sizes.tolist()):
            chunk = slice(first, first + sum(sizes))
            own_rows = None if rows is None else rows[direction]
            inner = x[own_rows[chunk]] if precomputed else _input_products(x, chunk, own_rows, w[:width], b)
            before = _run(cell, inner, sizes, before, None if fresh is None else starts[chunk], fresh, steps)
        outputs.append(torch.cat(steps))
        finals.append([restore(each, slots) for each in before])
    return torch.cat(outputs, dim=1), tuple(torch.cat(pair, dim=1) for pair in zip(*finals))


def _chunks(live: list[int]):
    """Groups of steps of about `_ROWS_AT_ONCE` rows: (first row, rows of each step)."""
    first, sizes = 0, []
    for size in live:
        if sizes and sum(sizes) + size > _ROWS_AT_ONCE:
            yield first, sizes
            first, sizes = first + sum(sizes), []
        sizes.append(size)
    if sizes:
        yield first, sizes


def _input_products(x, chunk, rows, w_x, b) -> torch.Tensor:
    """x W + b of the chunk's packed rows, each unique row precomputed once: [rows of the chunk, 4 D]."""
    if rows is None:
        return torch.addmm(b, x[chunk], w_x)
    unique, place = rows[chunk].unique(return_inverse=True)
    return torch.addmm(b, x[unique], w_x)[place]


def _run(cell, inner, sizes, before, starts, fresh, steps):
    """The steps of one chunk; appends each step's h to `steps` and returns the state after the last."""
    h, c = before
    starts = [None] * len(sizes) if starts is None else starts.split(sizes)
    for z, start in zip(inner.split(sizes), starts):
        live = len(z)
        old_h, old_c = h[:live], c[:live]
        if start is not None:
            old_h, old_c = torch.where(start, fresh[0], old_h), torch.where(start, fresh[1], old_c)
        new_h, new_c = cell(z, old_h, old_c)
        h = new_h if live == len(h) else torch.cat([new_h, h[live:]])
        c = new_c if live == len(c) else torch.cat([new_c, c[live:]])
        steps.append(new_h)
    return h, c


class _Cell:
    def __init__(self, w_h, w_p, cell_clip, proj_clip):
        self.w_h, self.w_p, self.cell_clip, self.proj_clip = w_h, w_p, cell_clip, proj_clip

    def __call__(self, z, h, c):
        i, j, f, o = torch.addmm(z, h, self.w_h).chunk(4, dim=1)
        c = clip(torch.addcmul(torch.sigmoid(f + 1) * c, torch.sigmoid(i), torch.tanh(j)), self.cell_clip)
        m = torch.sigmoid(o) * torch.tanh(c)
        return (m if self.w_p is None else clip(m @ self.w_p, self.proj_clip)), c
