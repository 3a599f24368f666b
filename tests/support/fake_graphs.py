"""CUDA graphs without a GPU: a capture keeps the work, and a replay checks every address that the work uses.

A graph has fixed addresses. A replay may therefore access only memory that exists as long as the graph, here the
buffers of the arena and allocations inside the graph; and a replay must not wait.
"""

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from elmo_fast.ops.projected_lstm.cuda.blocks import Operands

_WAITING = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "is_nonzero", "item", "_unique2")


class Watch(TorchDispatchMode):
    """Raises where an operation waits, or touches memory neither in `known` nor allocated under this watch."""

    def __init__(self, known):
        super().__init__()
        self._known = set(known)
        self._results = []  # alive, so that no address is used twice

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in _WAITING, f"{name} waits for the device"
        for address in addresses((args, kwargs or {})):
            assert address in self._known, f"{name} touches memory that is not the graph's"
        result = function(*args, **(kwargs or {}))
        self._results.append(result)
        self._known |= addresses(result)
        return result


def addresses(tree) -> set[int]:
    """Addresses of the memory of a tree's tensors."""
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


class FakeCapture:
    """A stand-in for `graphs.CudaCapture`: its graphs may access the buffers of their arena among `arenas`."""

    def __init__(self, arenas):
        self.captured, self.replayed, self._arenas = 0, 0, arenas

    def _buffers(self) -> set[int]:
        arena = next(arena for arena in self._arenas.kept.values() if arena.capture is self)
        layers = [of for bucket in arena._buckets.values() for of in bucket.graphs if isinstance(of, Operands)]
        return addresses([list(vars(holder).values()) for holder in (arena, *arena._buckets.values(), *layers)])

    def __call__(self, work):
        self.captured += 1
        known = self._buffers()

        def replay():
            assert self._buffers() >= known, "a buffer was made anew"
            self.replayed += 1
            with Watch(known):
                work()

        return SimpleNamespace(replay=replay)
