"""LSTM states between calls: carried from batch to batch, zero, or warm."""

import torch

from elmo_fast.choices import STATES
from elmo_fast.ops.reference import State

# What runs from zeros to give the state of `warm`.
WARM_TEXT: tuple[tuple[str, ...], ...] = tuple(tuple(line.split()) for line in (
    "The committee will meet again on Tuesday to discuss the report .",
    "She opened the window and looked out over the quiet street .",
    "Prices rose by about two per cent in the last quarter , the bank said .",
    "\" I do not think so , \" he answered , \" but we shall see . \"",
))


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
    kept = [each[:, :rows].to(zero) for each, zero in zip(carried, zeros)]
    return tuple(torch.cat([each, zero[:, each.shape[1]:]], dim=1) for each, zero in zip(kept, zeros))


def carried_on(carried: State | None, final: State) -> State:
    """What to carry after a batch ended in `final`: rows beyond the batch keep theirs. Detached."""
    final = tuple(each.detach() for each in final)
    if carried is None:
        return final
    rows = final[0].shape[1]
    return tuple(torch.cat([new, old[:, rows:].to(new)], dim=1) for new, old in zip(final, carried))


def reset_rows(carried: State | None, mask: torch.Tensor | None) -> State | None:
    """Forget every row, or the rows where `mask` [rows] is not zero."""
    if mask is None or carried is None:
        return None
    if mask.shape != carried[0].shape[1:2]:
        raise ValueError(f"mask: expected shape ({carried[0].shape[1]},), one for each carried row, "
                         f"got {tuple(mask.shape)}")
    keep = (mask == 0).view(1, -1, 1)
    return tuple(torch.where(keep.to(each.device), each, torch.zeros_like(each)) for each in carried)


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
