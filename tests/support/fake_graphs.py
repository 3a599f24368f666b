"""CUDA graphs without a GPU: a capture that keeps the work and, when it replays, watches every address it touches.

A graph bakes addresses in. What a replay may access is therefore memory that exists as long as the graph, here the
buffers of the arena, and what was allocated inside; and it may wait for nothing.
"""

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from elmo_fast.ops.projected_lstm.cuda.blocks import Operands

_WAITING = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "is_nonzero", "item", "_unique2")


class Watch(TorchDispatchMode):
    """Raises where an operation waits, or touches memory neither in `known` nor made under this watch."""

    def __init__(self, known):
        super().__init__()
        self._known = set(known)
        self._made = []  # kept alive, so that no address is used twice

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in _WAITING, f"{name} waits for the device"
        for touched in addresses((args, kwargs or {})):
            assert touched in self._known, f"{name} touches memory that is not the graph's"
        result = function(*args, **(kwargs or {}))
        self._made.append(result)
        self._known |= addresses(result)
        return result


def addresses(tree) -> set[int]:
    """Of the memory of a tree's tensors."""
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


class FakeCapture:
    """Stands in for `graphs.CudaCapture`: its graphs may access buffers of the one of `arenas` that it captures for."""

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
