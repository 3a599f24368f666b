"""Modules in a forked process, which lacks PyTorch's threads: an operation that PyTorch divides waits for them."""

import contextlib
import os
from collections.abc import Iterator

import torch

_IMPORTED_IN = os.getpid()


@contextlib.contextmanager
def threads_of_a_child() -> Iterator[None]:
    """In a forked process the body runs on one thread of PyTorch."""
    before = torch.get_num_threads()
    if os.getpid() == _IMPORTED_IN or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
