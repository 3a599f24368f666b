"""Memory at fixed addresses for the steps of an LSTM layer, shared by all layers and models of one size.

An arena belongs to one stream of one device. It holds the input projections, and for each bucket of slots the state and
what passes between kernels. Models come and go; an arena is freed with the last of the weights that used it.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.ops.cuda.blocks import CHUNKS
from elmo_fast.ops.cuda.graphs import Capture, Capturing, ChunkGraphs
from elmo_fast.ops.cuda.operands import Operands

_PROJECTION_BYTES = 1 << 28
_LEAST_ROWS, _MOST_ROWS = 1 << 11, 1 << 13
_MOST_BUCKETS = 8
_MOST_ARENAS = 8
_ALIGNMENT = 256  # bytes, of scratch memory


@dataclass(frozen=True)
class Sizes:
    """`dim` D, `projection` P, whether a projection leads from one to the other, the type that products read."""

    dim: int
    projection: int
    is_projected: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, layer: Operands) -> "Sizes":
        return cls(layer.dim, layer.projection, layer.w_p is not None, layer.dtype)

    @property
    def rows(self) -> int:
        """Rows of input projections that an arena holds: at least those of a step in both directions."""
        return max(_LEAST_ROWS, min(_MOST_ROWS, _PROJECTION_BYTES // (8 * self.dim * self.dtype.itemsize)))


class Arena:
    """Buffers of one size on one stream; `lock` is held while work on them is queued.

    `z` [M, 2, 4 D] input projections and `scale` fp32 [M, 2] (see `torch_lstm_pointwise`); `fresh_h` [2, P] and
    `fresh_c` [2, D] the initial state where a sequence starts.
    """

    def __init__(self, sizes: Sizes, device: torch.device, capture: Capture | None):
        self.sizes, self.device, self.lock = sizes, device, threading.RLock()
        self._capturing = Capturing(capture)
        self._buckets: OrderedDict[int, Bucket] = OrderedDict()
        self._scratch: torch.Tensor | None = None
        self.z = torch.empty(sizes.rows, 2, 4 * sizes.dim, device=device, dtype=sizes.dtype)
        self.scale = torch.empty(sizes.rows, 2, device=device) if sizes.dtype == torch.float16 else None
        self.fresh_h = torch.empty(2, sizes.projection, device=device)
        self.fresh_c = torch.empty(2, sizes.dim, device=device)

    def bucket(self, slots: int) -> "Bucket":
        """The buffers of a bucket of slots."""
        if slots not in self._buckets:
            self._buckets[slots] = Bucket(self, slots, self._capturing)
        self._buckets.move_to_end(slots)
        while len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return self._buckets[slots]

    def scratch(self, size: int) -> torch.Tensor:
        """`size` bytes, aligned; what they hold lasts until the next call's work."""
        if self._scratch is None or len(self._scratch) < size:
            self._scratch = None
            self._scratch = empty_bytes(size, self.device)
        return self._scratch


class Bucket:
    """Buffers of L slots and the graphs over them.

    `h` fp32 [2, L, P] and `c` fp32 [2, L, D] the state; `operand` [2, L, P] what the next step multiplies; `zh` fp32
    [2, L, 4 D]; `m` [2, L, D]; `r` fp32 [2, L, P] (`m` itself without a projection); `meta` int32 [steps + 1, 3, L]
    and `out` fp32 [steps, L, 2 P] of a chunk.
    """

    def __init__(self, arena: Arena, slots: int, capturing: Capturing):
        sizes, full = arena.sizes, {"device": arena.device, "dtype": torch.float32}
        self.h = torch.empty(2, slots, sizes.projection, **full)
        self.c = torch.empty(2, slots, sizes.dim, **full)
        self.operand = torch.empty_like(self.h, dtype=sizes.dtype)
        self.zh = torch.empty(2, slots, 4 * sizes.dim, **full)
        self.m = torch.empty_like(self.c, dtype=sizes.dtype if sizes.is_projected else torch.float32)
        self.r = torch.empty_like(self.h) if sizes.is_projected else self.m
        self.meta = torch.empty(CHUNKS[0] + 1, 3, slots, device=arena.device, dtype=torch.int32)
        self.out = torch.empty(CHUNKS[0], slots, 2 * sizes.projection, **full)
        self.out_rows = self.out.view(-1, 2 * sizes.projection)
        self._capturing = capturing
        self._graphs: weakref.WeakKeyDictionary[Operands, ChunkGraphs] = weakref.WeakKeyDictionary()

    def graphs_of(self, layer: Operands) -> ChunkGraphs:
        """The graphs that read a layer's operands; they go with those."""
        if layer not in self._graphs:
            self._graphs[layer] = ChunkGraphs(self._capturing)
        return self._graphs[layer]


class Arenas:
    """Arenas by key, at most `most`; the one unused for longest goes first, and those go whose weights are all gone."""

    def __init__(self, most: int = _MOST_ARENAS):
        self._most = most
        self._lock = threading.RLock()
        self._kept: OrderedDict[Hashable, tuple[Arena, weakref.WeakSet[_Owner]]] = OrderedDict()
        self._owners = WeakTensorKeyDictionary()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, weight: torch.Tensor, make: Callable[[], Arena]) -> Arena:
        """The arena of `key`, made if there is none, for a layer that lives as long as `weight`."""
        with self._lock:
            owner = self._owners.setdefault(weight, _Owner())
            arena, owners = self._kept.get(key) or (make(), weakref.WeakSet())
            if owner not in owners:
                owners.add(owner)
                weakref.finalize(owner, self._drop_unowned).atexit = False
            self._kept[key] = arena, owners
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return arena

    def _drop_unowned(self) -> None:
        with self._lock:
            for key, (_, owners) in list(self._kept.items()):
                if not list(owners):
                    del self._kept[key]


class _Owner:
    """Stands for a weight, and lives as long: tensors themselves compare by value."""


def empty_bytes(size: int, device: torch.device) -> torch.Tensor:
    """An uninitialized uint8 tensor that begins at a multiple of `_ALIGNMENT` bytes."""
    made = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    return made[-made.data_ptr() % _ALIGNMENT :][:size]
