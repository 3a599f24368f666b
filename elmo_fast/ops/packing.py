"""What was made of weights once: kept as long as they live, made again when one of them was edited in place."""

from collections.abc import Callable, Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.ops.edits import edit_key

Tensors = Sequence[torch.Tensor | None]

_kept = WeakTensorKeyDictionary()  # first tensor -> kind -> (key, what was made)


def packed(tensors: Tensors, kind: str, pack: Callable[[Tensors], object], keep: bool = True):
    """`pack(tensors)`, detached, or what it gave for the same tensors before; `kind` tells several uses apart.

    Without `keep`, for weights in training, what is there of them is dropped and what is made is not kept: fused
    optimizers edit tensors without counting it as an edit.
    """
    key = _key(tensors)
    of_first = _kept.setdefault(tensors[0], {})
    if keep and kind in of_first and of_first[kind][0] == key:
        return of_first[kind][1]
    made = pack([None if each is None else each.detach() for each in tensors])
    if keep:
        of_first[kind] = key, made
    else:
        of_first.clear()
    return made


def hand_over(old: Tensors, new: Tensors) -> None:
    """Let tensors `new`, which may hold no data, stand for `old` in what was made from all of those."""
    _kept[new[0]] = {kind: (_key(new), made) for kind, (key, made) in _kept.pop(old[0]).items() if len(key) == len(old)}


def _key(tensors: Tensors) -> tuple:
    return tuple(None if each is None else edit_key(each) for each in tensors)
