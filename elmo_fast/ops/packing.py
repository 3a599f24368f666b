"""What was made of weights once: kept as long as they live, made again when one of them was edited in place."""

from collections.abc import Callable, Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.ops.edits import edit_key

_kept = WeakTensorKeyDictionary()


def packed(tensors: Sequence[torch.Tensor], kind: str, pack: Callable[[Sequence[torch.Tensor]], object]):
    """`pack(tensors)`, detached, or what it gave for the same tensors before; `kind` tells several uses apart."""
    key = tuple(map(edit_key, tensors))
    of_first = _kept.setdefault(tensors[0], {})
    if kind not in of_first or of_first[kind][0] != key:
        of_first[kind] = key, pack([each.detach() for each in tensors])
    return of_first[kind][1]
