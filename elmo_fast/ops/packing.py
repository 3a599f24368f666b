"""What was made of weights once: kept as long as they live, made again when one of them was edited in place."""

from collections.abc import Callable, Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

_kept = WeakTensorKeyDictionary()


def packed(tensors: Sequence[torch.Tensor], kind: str, pack: Callable[[Sequence[torch.Tensor]], object]):
    """`pack(tensors)`, detached, or what it gave for the same tensors before; `kind` tells several uses apart."""
    key = tuple((each.data_ptr(), each.device, _version(each)) for each in tensors)
    of_first = _kept.setdefault(tensors[0], {})
    if kind not in of_first or of_first[kind][0] != key:
        of_first[kind] = key, pack([each.detach() for each in tensors])
    return of_first[kind][1]


def _version(tensor: torch.Tensor) -> object:
    """Counts in-place edits; an inference tensor does not count them, so what was made of it is never trusted."""
    return object() if tensor.is_inference() else tensor._version
