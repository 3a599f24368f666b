"""LSTM states between calls: carried from batch to batch, zero, or warm (the state after a text)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from elmo_fast.choices import STATES
from elmo_fast.ops.reference import State

# The text whose final state, run from zeros, is the initial state of `warm`.
WARM_TEXT: tuple[tuple[str, ...], ...] = tuple(tuple(line.split()) for line in (
    "The committee will meet again on Tuesday to discuss the report .",
    "She opened the window and looked out over the quiet street .",
    "Prices rose by about two per cent in the last quarter , the bank said .",
    "\" I do not think so , \" he answered , \" but we shall see . \"",
))

Text = Sequence[Sequence[str]]


class RunState(NamedTuple):
    """Where slots are: `last` (h [L, slots, 2 P], c [L, slots, 2 D]) after their last step.

    `initial` (h [L, 2 P], c [L, 2 D]) is the state that every sentence starts from, None where states are carried.
    """

    last: State
    initial: State | None


def check_state(state: str) -> str:
    """The argument itself, or `ValueError` when it is none of `STATES`."""
    if state not in STATES:
        raise ValueError(f"state: expected one of {', '.join(STATES)}, got {state!r}")
    return state


def zero_state(layers: int, rows: int, h_dim: int, c_dim: int, like: torch.Tensor) -> State:
    """h [layers, rows, h_dim] and c [layers, rows, c_dim] of zeros, with the type and device of `like`."""
    return like.new_zeros(layers, rows, h_dim), like.new_zeros(layers, rows, c_dim)


def first_rows(carried: State | None, zeros: State) -> State:
    """State of as many rows as `zeros` has: the carried ones first, zeros for rows that are new."""
    if carried is None:
        return zeros
    rows = zeros[0].shape[1]
    known = [old[:, :rows].to(zero) for old, zero in zip(carried, zeros)]
    return tuple(torch.cat([old, zero[:, old.shape[1]:]], dim=1) for old, zero in zip(known, zeros))


def next_carried(carried: State | None, final: State) -> State:
    """The carried state after a batch that ended in `final`: rows beyond the batch are unchanged. Detached."""
    final = tuple(value.detach() for value in final)
    if carried is None:
        return final
    rows = final[0].shape[1]
    return tuple(torch.cat([new, old[:, rows:].to(new)], dim=1) for new, old in zip(final, carried))


def reset_rows(carried: State | None, mask: torch.Tensor | None) -> State | None:
    """The carried state without any row, or with zeros in the rows where `mask` [rows] is not zero."""
    if mask is None or carried is None:
        return None
    if mask.shape != carried[0].shape[1:2]:
        raise ValueError(f"mask: expected shape ({carried[0].shape[1]},), one for each carried row, "
                         f"got {tuple(mask.shape)}")
    unchanged = (mask == 0).view(1, -1, 1)
    return tuple(torch.where(unchanged.to(value.device), value, torch.zeros_like(value)) for value in carried)


def check_states(states: State | None, layers: int, h_dim: int, c_dim: int) -> State | None:
    """`states` as a pair of tensors (h [layers, rows, h_dim], c [layers, rows, c_dim]), or `ValueError`."""
    if states is None:
        return None
    h, c = states
    expected = f"(h [{layers}, rows, {h_dim}], c [{layers}, rows, {c_dim}])"
    fits = h.dim() == c.dim() == 3 and h.shape[::2] == (layers, h_dim) and c.shape[::2] == (layers, c_dim)
    if not fits or h.shape[1] != c.shape[1]:
        raise ValueError(f"_states: expected {expected}, got {tuple(h.shape)} and {tuple(c.shape)}")
    return h, c
