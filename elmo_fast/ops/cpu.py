"""Functions shared by the ops on the C++ engine: weights and pointers.

The engine takes and returns fp32 tensors. Sums have a fixed order: a row's result has the same bits in any batch and on
any number of threads.
"""

import torch

from elmo_fast.ops.weight_cache import Tensors


def contiguous(tensors: Tensors) -> Tensors:
    """Weights as the engine packs them, contiguous fp32."""
    return [None if tensor is None else tensor.detach().float().contiguous() for tensor in tensors]


def pointer(tensor: torch.Tensor | None) -> int:
    """Address of a tensor's data, 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()
