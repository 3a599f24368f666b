"""Operations on CPU tensors that stay on the calling thread, between two calls of the C++ engine.

PyTorch's threads spin for milliseconds after each operation that PyTorch divides among them, on the cores that the
engine's helpers need next. On a busy machine such an operation also waits for a thread that has not been scheduled.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from elmo_fast.ops.device import to_device

UNDIVIDED = 1 << 14  # PyTorch does not divide an operation on at most this many values
_IMPORTED_IN = os.getpid()


@contextlib.contextmanager
def threads_of_a_child() -> Iterator[None]:
    """In a forked child the body runs on one thread: PyTorch's threads do not outlive a fork, and it waits for them."""
    before = torch.get_num_threads()
    if os.getpid() == _IMPORTED_IN or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sum_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b, tensors of the same shape and type; may overwrite `a` where neither tensor needs a gradient."""
    if not _is_plain(a) or not _is_plain(b):
        return a + b
    np.add(a.numpy(), b.numpy(), out=a.numpy())
    return a


def rows_of(matrix: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """matrix[rows]: rows int [N] of a matrix [R, C] -> [N, C]."""
    if not _is_plain(matrix):
        return matrix[to_device(rows, matrix.device)]
    return torch.from_numpy(matrix.numpy().take(rows, 0))


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """torch.stack(tensors)."""
    if not all(map(_is_plain, tensors)):
        return torch.stack(tuple(tensors))
    return torch.from_numpy(np.stack([tensor.numpy() for tensor in tensors]))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether NumPy can compute with the tensor."""
    return tensor.device.type == "cpu" and not tensor.requires_grad and type(tensor) is torch.Tensor and (
        tensor.dtype in (torch.float16, torch.float32, torch.float64))
