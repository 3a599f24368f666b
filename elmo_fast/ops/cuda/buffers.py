"""Memory at fixed addresses for the steps of an LSTM layer, shared by all layers and models of one size.

An arena belongs to one stream of one device. It holds the input projections, and for each bucket of slots the state and
what passes between kernels. Models come and go; an arena is freed with the last of the weights that used it.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.ops.cuda.blocks import CHUNKS
from elmo_fast.ops.cuda.graphs import Capture, ChunkGraphs
from elmo_fast.ops.cuda.operands import Operands

_PROJECTION_BYTES = 1 << 28
_LEAST_ROWS, _MOST_ROWS = 1 << 11, 1 << 13
_MOST_BUCKETS = 8
_MOST_ARENAS = 8
_ALIGNMENT = 256  # bytes, of scratch memory


def rows_held(layer: Operands) -> int:
    """Rows of input projections in an arena: at least those of a step in both directions."""
    return max(_LEAST_ROWS, min(_MOST_ROWS, _PROJECTION_BYTES // (8 * layer.dim * layer.dtype.itemsize)))


class Arena:
    """Buffers of one size on one stream; `lock` is held while work on them is queued.

    `z` [M, 2, 4 D] input projections and `scale` fp32 [M, 2] (see `ops/torch/lstm_pointwise.py`); `fresh_h` [2, P] and
    `fresh_c` [2, D] the initial state where a sequence starts.
    """

    def __init__(self, layer: Operands, device: torch.device, capture: Capture | None):
        self.device, self.capture, self.lock, rows = device, capture, threading.RLock(), rows_held(layer)
        self._buckets: OrderedDict[int, Bucket] = OrderedDict()
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self.z = torch.empty(rows, 2, 4 * layer.dim, device=device, dtype=layer.dtype)
        self.scale = torch.empty(rows, 2, device=device) if layer.dtype == torch.float16 else None
        self.fresh_h = torch.empty(2, layer.projection, device=device)
        self.fresh_c = torch.empty(2, layer.dim, device=device)

    def bucket(self, slots: int, layer: Operands) -> "Bucket":
        """The buffers of a bucket of slots, for layers of one size."""
        if slots not in self._buckets:
            self._buckets[slots] = Bucket(self.device, slots, layer)
        self._buckets.move_to_end(slots)
        while len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return self._buckets[slots]

    def scratch(self, size: int) -> torch.Tensor:
        """`size` bytes, aligned; what they hold lasts until the next call's work."""
        if len(self._scratch) < size:
            self._scratch = empty_bytes(size, self.device)
        return self._scratch


class Bucket:
    """Buffers of L slots, and `graphs` over them: of each layer, whose operands they read and with which they go.

    `h` fp32 [2, L, P] and `c` fp32 [2, L, D] the state; `operand` [2, L, P] what the next step multiplies; `zh` fp32
    [2, L, 4 D]; `m` [2, L, D]; `r` fp32 [2, L, P] (`m` itself without a projection); `meta` int32 [steps + 1, 3, L]
    and `out` fp32 [steps, L, 2 P] of a chunk.
    """

    def __init__(self, device: torch.device, slots: int, layer: Operands):
        self.h = torch.empty(2, slots, layer.projection, device=device, dtype=torch.float32)
        self.c = self.h.new_empty(2, slots, layer.dim)
        self.operand = torch.empty_like(self.h, dtype=layer.dtype)
        self.zh = self.h.new_empty(2, slots, 4 * layer.dim)
        self.m = torch.empty_like(self.c, dtype=torch.float32 if layer.w_p is None else layer.dtype)
        self.r = self.m if layer.w_p is None else torch.empty_like(self.h)
        self.meta = self.h.new_empty(CHUNKS[0] + 1, 3, slots, dtype=torch.int32)
        self.out = self.h.new_empty(CHUNKS[0], slots, 2 * layer.projection)
        self.out_rows = self.out.view(-1, 2 * layer.projection)
        self.graphs: weakref.WeakKeyDictionary[Operands, ChunkGraphs] = weakref.WeakKeyDictionary()


class Arenas:
    """Arenas by key, at most `most`; the one unused for longest goes first, and those go whose weights are all gone."""

    def __init__(self, most: int = _MOST_ARENAS):
        self._most, self._lock = most, threading.RLock()
        self.kept: weakref.WeakValueDictionary[Hashable, Arena] = weakref.WeakValueDictionary()  # used last: at the end
        self._of_weight = WeakTensorKeyDictionary()  # weight -> {key: arena}, which keeps the arena

    def get(self, key: Hashable, weight: torch.Tensor, make: Callable[[], Arena]) -> Arena:
        """The arena of `key`, made if there is none, for a layer that lives as long as `weight`."""
        with self._lock:
            arena = self.kept.pop(key, None) or make()
            self.kept[key] = self._of_weight.setdefault(weight, {})[key] = arena
            while len(self.kept) > self._most:
                oldest = next(iter(self.kept))
                del self.kept[oldest]
                for arenas in self._of_weight.values():
                    arenas.pop(oldest, None)
            return arena


def empty_bytes(size: int, device: torch.device) -> torch.Tensor:
    """An uninitialized uint8 tensor that begins at a multiple of `_ALIGNMENT` bytes."""
    made = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    return made[-made.data_ptr() % _ALIGNMENT :][:size]
