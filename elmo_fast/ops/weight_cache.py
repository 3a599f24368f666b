"""The operands that a GPU makes of weights at rest, kept while the weights exist."""

from collections.abc import Callable, Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.ops.device import synchronize_stream

Tensors = Sequence[torch.Tensor | None]

_operands = WeakTensorKeyDictionary()  # the first of some tensors -> kind -> what the tensors were, and the operands


def cached(tensors: Tensors, kind: str, make: Callable[[Tensors], object]):
    """`make` of the detached tensors, or the kept result for the same tensors; `kind` names the use.

    Edits that torch counts are seen. Results of inference tensors, whose edits it does not count, and of weights that
    are trained are not kept.
    """
    def made():
        return make([None if tensor is None else tensor.detach() for tensor in tensors])

    if any(tensor.requires_grad or tensor.is_inference() for tensor in tensors if tensor is not None):
        return made()
    marks = [None if tensor is None else (id(tensor), tensor.data_ptr(), tensor._version) for tensor in tensors]
    of_first = _operands.setdefault(tensors[0], {})
    if kind not in of_first or of_first[kind][0] != marks:
        value = made()
        synchronize_stream(next(tensor.device for tensor in tensors if tensor is not None))  # any stream may read it
        of_first[kind] = marks, value
    return of_first[kind][1]
