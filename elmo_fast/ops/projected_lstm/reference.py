"""The specification: a layer of the two-direction LSTM in plain torch, for any float dtype.

Written for readability. Weights have the shapes of bilm-tf's weight file. Every faster implementation has this
signature and is tested against this function.
"""

import itertools
from collections.abc import Callable, Iterable

import torch

from elmo_fast.engine.schedule import Schedule

State = tuple[torch.Tensor, torch.Tensor]
LstmWeights = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def projected_lstm(
    inputs: torch.Tensor, rows: torch.Tensor | None, schedule: Schedule, state: State,
    weights: tuple[LstmWeights, LstmWeights], *, cell_clip: float | None = None, proj_clip: float | None = None,
    initial_state: State | None = None,
) -> tuple[torch.Tensor, State]:
    """A layer of a two-direction LSTM with projection and clipping (Sak et al. 2014; bilm-tf's `LSTMCell`).

    Runs the S packed rows of `schedule`. `inputs` is one of: [R, I] with `rows` int [2, S], the row that a direction
    reads at a packed row; [S, 2 I] without `rows`, forward half first. `state` is (h [slots, 2 P], c [slots, 2 D]),
    forward half first, slots in the caller's order. `weights` are (W, B, W_P), forward then backward: W [I + P, 4 D]
    with gates i, j, f, o; B [4 D]; W_P [D, P], or None if D == P, and then h is not clipped. `initial_state` (h [2 P],
    c [2 D]) replaces a slot's state where a sentence starts; without it a sentence continues from the previous sentence
    in its slot.

    Returns outputs [S, 2 P] and the final state as new tensors.
    """
    def inputs_of(direction):
        x = half(inputs, direction) if rows is None else inputs[rows[direction]]  # [S, I]
        return x.split(schedule.batch_sizes.tolist())

    def step(direction, x, h, c):
        return lstm_cell(x, h, c, *weights[direction], cell_clip, proj_clip)

    return time_loop(inputs_of, step, schedule, state, initial_state)


def time_loop(inputs_of: Callable[[int], Iterable[torch.Tensor]], step: Callable, schedule: Schedule, state: State,
              initial_state: State | None) -> tuple[torch.Tensor, State]:
    """Run both directions; return outputs and final state.

    `inputs_of(direction)` yields the inputs [n, ...] of every step; `step(direction, inputs, h, c)` returns the next h
    and c.
    """
    order = torch.as_tensor(schedule.slots, device=state[0].device)
    halves = []
    for direction in (0, 1):
        h, c = (half(part, direction)[order] for part in state)  # [slots, P], [slots, D]
        starts, outputs = itertools.repeat(None), [h[:0]]
        if initial_state is not None:
            initial = [half(part, direction) for part in initial_state]
            starts = torch.as_tensor(schedule.sequence_starts, device=h.device)[:, None].split(
                schedule.batch_sizes.tolist())
        for x, start in zip(inputs_of(direction), starts):
            running = len(x)
            before = h[:running], c[:running]
            if start is not None:
                before = (torch.where(start, new, old) for new, old in zip(initial, before))
            new_h, new_c = step(direction, x, *before)
            h = new_h if running == len(h) else torch.cat([new_h, h[running:]])
            c = new_c if running == len(c) else torch.cat([new_c, c[running:]])
            outputs.append(new_h)
        halves.append((torch.cat(outputs), restore(h, order), restore(c, order)))
    out, h, c = (torch.cat(pair, dim=1) for pair in zip(*halves))
    return out, (h, c)


def lstm_cell(x, h, c, w, b, w_p, cell_clip, proj_clip):
    """A step of one direction: x [n, I], h [n, P], c [n, D] -> the next h and c."""
    z = torch.cat([x, h], dim=1) @ w + b  # [n, 4 D]
    i, j, f, o = z.chunk(4, dim=1)
    c = clip(torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j), cell_clip)
    m = torch.sigmoid(o) * torch.tanh(c)
    return (m if w_p is None else clip(m @ w_p, proj_clip)), c


def clip(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    """Clamp `x` to ±`limit`; None means no limit."""
    return x if limit is None else x.clamp(-limit, limit)


def half(x: torch.Tensor, direction: int) -> torch.Tensor:
    """The forward (0) or backward (1) half of the last dimension."""
    return x.chunk(2, dim=-1)[direction]


def restore(rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Undo `rows = original[order]`."""
    return torch.empty_like(rows).index_copy(0, order, rows)
