"""Partitions the steps of a schedule for the GPU, and allocates buffers at fixed addresses for them.

Numbers of slots are rounded up to buckets; steps are grouped into blocks and chunks. A graph is captured per bucket and
chunk; a launch of the persistent kernel runs a block. All layers and models of the same size on a stream share an
arena of buffers.
"""

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.engine.precision import operands_of
from elmo_fast.ops.device import to_device
from elmo_fast.ops.numerics import type_of
from elmo_fast.ops.projected_lstm.cuda.graphs import Capture, Graphs
from elmo_fast.ops.weight_cache import cached

CHUNK = 16  # steps of a CUDA graph
_LEAST_BUCKET, _LEAST_STEPS = 8, 8  # never shrink a bucket of 8 slots, nor any bucket for the last 8 steps
_PROJECTION_BYTES = 1 << 28
_LEAST_ROWS, _MOST_ROWS = 1 << 11, 1 << 13
_MOST_ARENAS = 8
_LARGEST = 30000.0  # largest weight or clip for fp16 operands: half of the range of fp16


# ---- schedules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Consecutive steps of the slots from `slot` on that share a bucket and an input GEMM.

    `packed_rows` int32 [steps, bucket]: the packed row of each slot at each step, -1 for a slot without a token;
    `batch_sizes` int32 [steps]: the number of slots with a token.
    """

    slot: int
    packed_rows: np.ndarray
    batch_sizes: np.ndarray

    steps = property(lambda self: self.packed_rows.shape[0])
    bucket = property(lambda self: self.packed_rows.shape[1])
    slots = property(lambda self: int(self.batch_sizes[0]))

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The packed rows of the block in order, int32."""
        return self.packed_rows[self.packed_rows >= 0]


def bucket_of(slots: int) -> int:
    """The smallest bucket for `slots` slots: powers of two up to 64, multiples of 32 up to 256, then of 128."""
    if slots <= 64:
        return 1 << (slots - 1).bit_length()
    step = 32 if slots <= 256 else 128
    return -(-slots // step) * step


def chunks_of(steps: int) -> Iterator[tuple[int, int]]:
    """Split steps into chunks, as (first step, number of steps): powers of two up to `CHUNK`, the largest first."""
    first = 0
    while first < steps:
        size = min(CHUNK, 1 << (steps - first).bit_length() - 1)
        yield first, size
        first += size


def blocks(batch_sizes: np.ndarray, most_rows: int, most_slots: int) -> Iterator[Block]:
    """Split a schedule with `batch_sizes` int [steps] into blocks of at most `most_rows` rows and `most_slots` slots.

    A block ends before `most_rows` is exceeded, and when so few slots are left that a smaller bucket pays off. A step
    of more than `most_rows` slots is a block by itself.
    """
    batch_sizes = np.asarray(batch_sizes, dtype=np.int64)
    first_row = np.cumsum(batch_sizes) - batch_sizes  # [steps]
    for slot in range(0, int(batch_sizes.max(initial=0)), most_slots):
        running = np.clip(batch_sizes - slot, 0, most_slots)
        steps, first = int(np.count_nonzero(running)), 0
        while first < steps:
            left, bucket = running[first:steps], bucket_of(int(running[first]))
            few = left <= (bucket // (2 if bucket > 64 else 4) if bucket > _LEAST_BUCKET else 0)
            few[-_LEAST_STEPS + 1 :] = False
            ends = np.flatnonzero(few | (np.cumsum(left) > most_rows))
            steps_of_block = slice(first, first + max(1, int(ends[0])) if ends.size else steps)
            column = np.arange(bucket)
            packed_rows = np.where(column < running[steps_of_block, None],
                                   first_row[steps_of_block, None] + slot + column, -1)
            yield Block(slot, packed_rows.astype(np.int32), running[steps_of_block].astype(np.int32))
            first = steps_of_block.stop


def host_arrays(block: Block, z_rows: Sequence[np.ndarray], starts: np.ndarray | None) -> list[np.ndarray]:
    """The arrays that the steps of a block read on the device: `meta`, `packed_rows` and `batch_sizes`.

    `meta` int32 [steps + 1, 3, bucket]: the row of z for each direction, -1 without a token, and 1 where a sequence
    starts. `z_rows`: for each direction the rows of z of the block's packed rows.
    """
    has_token = block.packed_rows >= 0
    meta = np.full((block.steps + 1, 3, block.bucket), -1, dtype=np.int32)
    meta[:, 2] = 0
    meta[:-1, :2].swapaxes(0, 1)[:, has_token] = z_rows
    if starts is not None:
        meta[:-1, 2][has_token] = starts[block.rows]
    return [meta, block.packed_rows, block.batch_sizes]


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copy int32 arrays to `device` in a single transfer."""
    flat = to_device(np.concatenate([array.ravel() for array in arrays]), device)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) if array.ndim > 1 else part for part, array in zip(parts, arrays)]


# ---- weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Operands:
    """`w_x` [I, 2, 4 D], `w_h` [2, P, 4 D] and, with a projection, `w_p` [2, D, P] in the operand type.

    The columns of `w_x` are [D, 4]: the gates of a cell are adjacent in z, and loaded together. Training has them gate
    by gate, as those of `w_h` are. The inner dimension of `w_h` is contiguous. `bias` fp32 [2, 4 D].
    Compared by identity, not by value. `for_one_call`: the weights are inference tensors, whose in-place changes torch
    does not count, so the operands are made again for every call.
    """

    w_x: torch.Tensor
    w_h: torch.Tensor
    bias: torch.Tensor
    w_p: torch.Tensor | None
    for_one_call: bool

    dtype = property(lambda self: self.w_h.dtype)
    dim = property(lambda self: self.bias.shape[1] // 4)
    projection = property(lambda self: self.w_h.shape[1])


def operands(weights: Sequence[torch.Tensor], precision: str, proj_clip: float) -> Operands:
    """Convert `flat_weights` to the type of the products' operands.

    `medium` uses fp16 only if operands are bounded: h by the clip (without a projection |h| < 1), and every weight by
    `_LARGEST`, which is checked once per version of the weights.
    """
    bounded = len(weights) == 4 or proj_clip <= _LARGEST
    dtype, unbounded = (type_of(operands_of(precision, is_bounded)) for is_bounded in (bounded, False))

    def make(detached: Sequence[torch.Tensor]) -> Operands:
        layer = stacked(detached, dtype, unbounded)
        return dataclasses.replace(layer, w_x=layer.w_x.unflatten(2, (4, -1)).transpose(2, 3).flatten(2))

    return cached(weights, f"lstm operands {dtype}", make)


def stacked(weights: Sequence[torch.Tensor], dtype: torch.dtype, unbounded: torch.dtype | None = None) -> Operands:
    """Stack both directions in `dtype`, or for fp16 in `unbounded` if a weight is too large."""
    if dtype == torch.float16:
        largest = torch.stack([matrix.abs().amax().float() for matrix in weights if matrix.dim() == 2]).amax()
        dtype = dtype if float(largest) <= _LARGEST else unbounded
    parts = len(weights) // 2
    w, b, *w_p = (torch.stack(pair) for pair in zip(weights[:parts], weights[parts:]))
    width = w.shape[1] - (w_p[0].shape[2] if w_p else b.shape[1] // 4)
    w_h = w[:, width:].transpose(1, 2).to(dtype).contiguous().transpose(1, 2)
    return Operands(w[:, :width].transpose(0, 1).to(dtype).contiguous(), w_h, b.float(),
                    w_p[0].to(dtype) if w_p else None, any(weight.is_inference() for weight in weights))


# ---- buffers ---------------------------------------------------------------------------------------------------------


def rows_held(layer: Operands) -> int:
    """Number of rows of input projections in an arena: at least the rows of a step in both directions."""
    return max(_LEAST_ROWS, min(_MOST_ROWS, _PROJECTION_BYTES // (8 * layer.dim * layer.dtype.itemsize)))


class Arena:
    """Buffers for layers of the same size on a stream; hold `lock` while queuing work on them.

    Input projections `z` [M, 2, D, 4] and `scale` fp32 [M, 2] (see `pointwise.py`); the state at sequence starts,
    `initial_h` [2, P] and `initial_c` [2, D].
    """

    def __init__(self, layer: Operands, device: torch.device):
        self.device, self.lock, rows = device, threading.RLock(), rows_held(layer)
        self.capture: Capture | None = None  # makes the graphs, once it may
        self._buckets: dict[int, Bucket] = {}  # few, since `bucket_of` rounds
        self.z = torch.empty(rows, 2, layer.dim, 4, device=device, dtype=layer.dtype)
        self.scale = torch.empty(rows, 2, device=device) if layer.dtype == torch.float16 else None
        self.initial_h = torch.empty(2, layer.projection, device=device)
        self.initial_c = torch.empty(2, layer.dim, device=device)

    def bucket(self, slots: int, layer: Operands) -> "Bucket":
        """The buffers for a bucket of slots."""
        if slots not in self._buckets:
            self._buckets[slots] = Bucket(self.device, slots, layer)
        return self._buckets[slots]


class Bucket:
    """Buffers of L slots, and per layer the `graphs` over them, which are dropped together with the layer's operands.

    State `h` fp32 [2, L, P] and `c` fp32 [2, L, D]; `operand` [2, L, P], h as the operand of the next step; products
    `zh` fp32 [2, L, 4 D]; `m` [2, L, D]; `r` fp32 [2, L, P] (`m` itself without a projection); `meta` int32
    [steps + 1, 3, L] and `out` fp32 [steps, L, 2 P] of a chunk.
    """

    def __init__(self, device: torch.device, slots: int, layer: Operands):
        self.h = torch.empty(2, slots, layer.projection, device=device, dtype=torch.float32)
        self.c = self.h.new_empty(2, slots, layer.dim)
        self.operand = torch.empty_like(self.h, dtype=layer.dtype)
        self.zh = self.h.new_empty(2, slots, 4 * layer.dim)
        self.m = torch.empty_like(self.c, dtype=torch.float32 if layer.w_p is None else layer.dtype)
        self.r = self.m if layer.w_p is None else torch.empty_like(self.h)
        self.meta = self.h.new_empty(CHUNK + 1, 3, slots, dtype=torch.int32)
        self.out = self.h.new_empty(CHUNK, slots, 2 * layer.projection)
        self.graphs: weakref.WeakKeyDictionary[Operands, Graphs] = weakref.WeakKeyDictionary()


class Arenas:
    """A least-recently-used cache of arenas by key. An arena is also dropped when all weights that use it are gone."""

    def __init__(self):
        self._lock = threading.RLock()
        # least recently used first
        self.kept: weakref.WeakValueDictionary[Hashable, Arena] = weakref.WeakValueDictionary()
        self._of_weight = WeakTensorKeyDictionary()  # weight -> {key: arena}, the strong references

    def get(self, key: Hashable, weight: torch.Tensor, make: Callable[[], Arena]) -> Arena:
        """The arena of `key`, created if absent, and kept at most as long as `weight` lives."""
        with self._lock:
            arena = self.kept.pop(key, None) or make()
            self.kept[key] = self._of_weight.setdefault(weight, {})[key] = arena
            while len(self.kept) > _MOST_ARENAS:
                oldest = next(iter(self.kept))
                del self.kept[oldest]
                for arenas in self._of_weight.values():
                    arenas.pop(oldest, None)
            return arena
