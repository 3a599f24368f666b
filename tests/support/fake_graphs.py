"""CUDA graphs without a GPU: a capture that keeps the work and, when it replays, watches every address it touches.

A graph bakes addresses in. What a replay may access is therefore memory that exists as long as the graph, here the
buffers of the arena, and what was allocated inside; and it may wait for nothing.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITING = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "is_nonzero", "item", "_unique2")


class Watch(TorchDispatchMode):
    """Raises where an operation waits, or touches memory neither in `known`, if given, nor made under this watch."""

    def __init__(self, known):
        super().__init__()
        self._known, self._any = set(known or ()), known is None
        self._made = []  # kept alive, so that no address is used twice
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in _WAITING, f"{name} waits for the device"
        for each in tensors_in((args, kwargs or {})):
            assert self._any or address(each) in self._known, f"{name} touches memory that is not the graph's"
        result = function(*args, **(kwargs or {}))
        self._made += tensors_in(result)
        self._known |= {address(each) for each in tensors_in(result)}
        self.operations += 1
        return result


def tensors_in(tree) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class FakeCapture:
    """Stands in for `graphs.CudaCapture`, whose graphs may access what `buffers_of(self)` gives."""

    def __init__(self, buffers_of):
        self.captured, self.replayed, self._buffers_of = 0, 0, buffers_of

    def addresses(self) -> set[int]:
        return {address(each) for each in self._buffers_of(self)}

    def __call__(self, work):
        self.captured += 1
        return _FakeGraph(self, work)


class _FakeGraph:
    def __init__(self, capture, work):
        self._capture, self._work = capture, work
        self._known = capture.addresses()

    def replay(self):
        assert self._capture.addresses() >= self._known, "a buffer was made anew"
        self._capture.replayed += 1
        with Watch(self._known):
            self._work()
