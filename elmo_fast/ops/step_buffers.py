"""Memory at fixed addresses for the steps of an LSTM layer, shared by all layers and models of one size.

An arena belongs to one stream of one device. It holds a layer's weights, the input products, and for each bucket of
lanes the state and what passes between kernels. Models come and go; an arena goes when the last of them has gone.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from elmo_fast.ops.lstm_operands import Operands, when_gone
from elmo_fast.ops.reference import State
from elmo_fast.ops.step_graphs import Capture, Capturing, ChunkGraphs
from elmo_fast.ops.step_plan import CHUNKS, MOST_LANES

_PRODUCT_BYTES = 1 << 28
_MOST_PRODUCTS = 1 << 13
_MOST_BUCKETS = 8
_MOST_ARENAS = 8


@dataclass(frozen=True)
class Sizes:
    """`dim` D, `projection` P, whether a projection leads from one to the other, the type that products read."""

    dim: int
    projection: int
    is_projected: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, operands: Operands) -> "Sizes":
        projection, gates = operands.w_h[0].shape
        return cls(gates // 4, projection, operands.w_p is not None, operands.dtype)

    @property
    def products(self) -> int:
        """Rows of input products that an arena holds."""
        return max(2 * MOST_LANES, min(_MOST_PRODUCTS, _PRODUCT_BYTES // (8 * self.dim * self.dtype.itemsize)))


class Arena:
    """Buffers of one size on one stream; `lock` is held while work on them is queued.

    `z` [M, 2, 4 D] input products and `scale` fp32 [M, 2] (see `torch_lstm_pointwise`); `w_h`, `bias`, `w_p` the
    weights of the layer that `hold` names; `fresh_h` [2, P], `fresh_c` [2, D] where sentences restart.
    """

    def __init__(self, sizes: Sizes, device: torch.device, capture: Capture | None):
        self.sizes, self.device, self.lock = sizes, device, threading.RLock()
        self._capturing = Capturing(capture)
        self._held: int | None = None
        self._buckets: OrderedDict[int, Bucket] = OrderedDict()
        dim, projection, typed = sizes.dim, sizes.projection, {"device": device, "dtype": sizes.dtype}
        self.z = torch.empty(sizes.products, 2, 4 * dim, **typed)
        self.scale = torch.empty(sizes.products, 2, device=device) if sizes.dtype == torch.float16 else None
        self.w_h = torch.empty(2, projection, 4 * dim, **typed)
        self.w_p = torch.empty(2, dim, projection, **typed) if sizes.is_projected else None
        self.bias = torch.empty(2, 4 * dim, device=device)
        self.fresh_h = torch.empty(2, projection, device=device)
        self.fresh_c = torch.empty(2, dim, device=device)

    def hold(self, operands: Operands, restart: State | None) -> None:
        """Take over a layer's weights, unless they are there, and where its sentences restart."""
        if self._held != operands.serial:
            self._held = None
            for one in (0, 1):
                self.w_h[one].copy_(operands.w_h[one])
                self.bias[one].copy_(operands.bias[one])
                if operands.w_p is not None:
                    self.w_p[one].copy_(operands.w_p[one])
            self._held = operands.serial
        if restart is not None:
            self.fresh_h.copy_(restart[0].view_as(self.fresh_h))
            self.fresh_c.copy_(restart[1].view_as(self.fresh_c))

    def bucket(self, lanes: int) -> "Bucket":
        """The buffers of a bucket of lanes."""
        if lanes not in self._buckets:
            self._buckets[lanes] = Bucket(self, lanes, ChunkGraphs(self._capturing))
        self._buckets.move_to_end(lanes)
        while len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return self._buckets[lanes]


class Bucket:
    """Buffers of L lanes and the graphs over them.

    `h` fp32 [2, L, P] and `c` fp32 [2, L, D] the state; `operand` [2, L, P] what the next step multiplies; `zh` fp32
    [2, L, 4 D]; `m` [2, L, D]; `r` fp32 [2, L, P] (`m` itself without a projection); `meta` int32 [steps + 1, 3, L]
    and `out` fp32 [steps, L, 2 P] of a chunk.
    """

    def __init__(self, arena: Arena, lanes: int, graphs: ChunkGraphs):
        sizes, full = arena.sizes, {"device": arena.device, "dtype": torch.float32}
        self.lanes, self.graphs = lanes, graphs
        self.h = torch.empty(2, lanes, sizes.projection, **full)
        self.c = torch.empty(2, lanes, sizes.dim, **full)
        self.operand = torch.empty_like(self.h, dtype=sizes.dtype)
        self.zh = torch.empty(2, lanes, 4 * sizes.dim, **full)
        self.m = torch.empty_like(self.c, dtype=sizes.dtype if sizes.is_projected else torch.float32)
        self.r = torch.empty_like(self.h) if sizes.is_projected else self.m
        self.meta = torch.empty(CHUNKS[0] + 1, 3, lanes, device=arena.device, dtype=torch.int32)
        self.out = torch.empty(CHUNKS[0], lanes, 2 * sizes.projection, **full)


class Arenas:
    """Arenas by key, at most `most`; the one unused for longest goes first, and those go whose owners are all gone."""

    def __init__(self, most: int = _MOST_ARENAS):
        self._most = most
        self._lock = threading.RLock()
        self._kept: OrderedDict[Hashable, tuple[Arena, set[int]]] = OrderedDict()
        when_gone(self.release)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, owner: int, make) -> Arena:
        """The arena of `key`, made if there is none, kept at least as long as nobody asks for many others."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make(), set()
            arena, owners = self._kept[key]
            owners.add(owner)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return arena

    def release(self, owner: int) -> None:
        """Forget an owner, and the arenas that served it alone."""
        with self._lock:
            for key, (_, owners) in list(self._kept.items()):
                owners.discard(owner)
                if not owners:
                    del self._kept[key]
