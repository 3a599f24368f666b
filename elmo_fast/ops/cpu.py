"""Functions shared by the ops on the C++ engine: packed weights, threads, pointers.

The engine takes and returns fp32 tensors. Sums have a fixed order: a row's result has the same bits in any batch and on
any number of threads.
"""

from collections.abc import Callable

import torch

from elmo_fast.engine.backend import native_module
from elmo_fast.environment import cores
from elmo_fast.ops import weight_cache
from elmo_fast.ops.weight_snapshot import Tensors


def packed_weights(tensors: Tensors, kind: str, pack: Callable[[Tensors], torch.Tensor], keep: bool = True):
    """Contiguous fp32 weights packed by `pack` for this machine's instruction set; see `weight_cache.cached`."""
    def pack_full(detached: Tensors) -> torch.Tensor:
        return pack([None if tensor is None else tensor.float().contiguous() for tensor in detached])

    return weight_cache.cached(tensors, on_this_machine(kind), pack_full, keep)


def on_this_machine(kind: str) -> str:
    """The name under which the cache has what was packed for the instruction set that the engine uses."""
    return f"{kind} for {native_module()[0].cpu_isa()}"


def threads() -> int:
    """Threads of a call: PyTorch's number, but at most the processors that the process may use."""
    return min(torch.get_num_threads(), cores())


def aligned_bytes(size: int) -> torch.Tensor:
    """An uninitialized uint8 tensor that begins on a cache line."""
    padded = torch.empty(size + 64, dtype=torch.uint8, device="cpu")
    return padded[-padded.data_ptr() % 64 :][:size]


def pointer(tensor: torch.Tensor | None) -> int:
    """Address of a tensor's data, 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()
