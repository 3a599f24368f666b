"""How the steps of a schedule are cut for the GPU, and the memory at fixed addresses that they run over.

Slots come in buckets, steps in blocks and chunks: a graph is captured for a bucket of slots and a chunk of steps, and a
launch of the persistent kernel runs one block. An arena is shared by all layers and models of one size on a stream.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.ops.device import is_capturing, synchronize_stream, to_device
from elmo_fast.ops.numerics import type_of
from elmo_fast.ops.precision import operands_of
from elmo_fast.ops.projected_lstm.cuda.graphs import Capture, Graphs
from elmo_fast.ops.weight_cache import cached

CHUNK = 16  # steps of a CUDA graph
_LEAST_BUCKET, _LEAST_STEPS = 8, 8  # slots of a bucket that never shrinks; last steps for which none does
_PROJECTION_BYTES = 1 << 28
_LEAST_ROWS, _MOST_ROWS = 1 << 11, 1 << 13
_MOST_ARENAS = 8
_LARGEST = 30000.0  # of a weight or a clip, for fp16 operands: half of what fp16 holds


# ---- schedules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Some steps of the slots from `slot` on, with one bucket and one set of input projections.

    `packed_rows` int32 [steps, bucket]: the packed row of each slot at each step, or -1 where it has no token;
    `batch_sizes` int32 [steps]: how many have one.
    """

    slot: int
    packed_rows: np.ndarray
    batch_sizes: np.ndarray

    steps = property(lambda self: self.packed_rows.shape[0])
    bucket = property(lambda self: self.packed_rows.shape[1])
    slots = property(lambda self: int(self.batch_sizes[0]))

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """Its packed rows in their order, int32."""
        return self.packed_rows[self.packed_rows >= 0]


def bucket_of(slots: int) -> int:
    """The smallest bucket that holds so many slots: powers of two to 64, multiples of 32 to 256, then of 128."""
    if slots <= 64:
        return 1 << (slots - 1).bit_length()
    step = 32 if slots <= 256 else 128
    return -(-slots // step) * step


def chunks_of(steps: int) -> Iterator[tuple[int, int]]:
    """(first step, steps) of chunks that make up so many steps: powers of two, the largest first."""
    first = 0
    while first < steps:
        size = min(CHUNK, 1 << (steps - first).bit_length() - 1)
        yield first, size
        first += size


def blocks(batch_sizes: np.ndarray, most_rows: int, most_slots: int) -> Iterator[Block]:
    """Blocks of a schedule with `batch_sizes` int [steps], each of at most `most_rows` rows and `most_slots` slots.

    A block ends when its rows are full, and when so few slots are left that a smaller bucket is worth it. A step of
    more than `most_rows` slots is a block of its own.
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
            here = slice(first, first + max(1, int(ends[0])) if ends.size else steps)
            at = np.arange(bucket)
            packed_rows = np.where(at < running[here, None], first_row[here, None] + slot + at, -1)
            yield Block(slot, packed_rows.astype(np.int32), running[here].astype(np.int32))
            first = here.stop


def host_arrays(block: Block, z_rows: Sequence[np.ndarray], starts: np.ndarray | None) -> list[np.ndarray]:
    """What steps read on the device: `meta`, and the block's `packed_rows` and `batch_sizes`.

    `meta` int32 [steps + 1, 3, bucket]: the row of z for each direction, -1 without a token, and whether a sequence
    starts. `z_rows` of each direction: the row of z of each packed row.
    """
    has_token = block.packed_rows >= 0
    meta = np.full((block.steps + 1, 3, block.bucket), -1, dtype=np.int32)
    meta[:, 2] = 0
    meta[:-1, :2].swapaxes(0, 1)[:, has_token] = z_rows
    if starts is not None:
        meta[:-1, 2][has_token] = starts[block.rows]
    return [meta, block.packed_rows, block.batch_sizes]


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """int32 arrays on `device`, in one copy."""
    flat = to_device(np.concatenate([array.ravel() for array in arrays]), device)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) if array.ndim > 1 else part for part, array in zip(parts, arrays)]


# ---- weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Operands:
    """`w_x` [I, 2, 4 D], `w_h` [2, P, 4 D] and, where there is a projection, `w_p` [2, D, P] in the operand type.

    `bias` fp32 [2, 4 D]. Two that are not the same object may hold different values. `for_one_call`: made of inference
    tensors, whose edits torch does not count, so that they are made for each call anew.
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
    """`flat_weights` in the type that their products run in.

    They are bounded, as `medium` in fp16 needs it, where the clip bounds h (without a projection |h| < 1) and every
    weight is at most `_LARGEST`, which is checked once for each version of the weights.
    """
    bounded = len(weights) == 4 or proj_clip <= _LARGEST
    dtype, unbounded = (type_of(operands_of(precision, is_bounded)) for is_bounded in (bounded, False))
    return cached(weights, f"lstm operands {dtype}", lambda detached: _stacked(detached, dtype, unbounded))


def _stacked(weights: Sequence[torch.Tensor], dtype: torch.dtype, unbounded: torch.dtype) -> Operands:
    """`unbounded` is their type where a weight is too large for `dtype`.

    Not in a capture: its memory is freed with the graph, and nothing can be copied to the host in it."""
    if is_capturing(weights[0].device):
        raise RuntimeError("weights: expected a model that has run once before a CUDA graph is captured, "
                           "got one whose weights are not prepared")
    if dtype == torch.float16:
        largest = torch.stack([matrix.abs().amax().float() for matrix in weights if matrix.dim() == 2]).amax()
        dtype = dtype if float(largest) <= _LARGEST else unbounded
    parts = len(weights) // 2
    w, b, *w_p = (torch.stack(pair) for pair in zip(weights[:parts], weights[parts:]))
    width = w.shape[1] - (w_p[0].shape[2] if w_p else b.shape[1] // 4)
    made = Operands(w[:, :width].transpose(0, 1).to(dtype).contiguous(), w[:, width:].to(dtype).contiguous(), b.float(),
                    w_p[0].to(dtype) if w_p else None, any(weight.is_inference() for weight in weights))
    synchronize_stream(w.device)
    return made


# ---- buffers ---------------------------------------------------------------------------------------------------------


def rows_held(layer: Operands) -> int:
    """Rows of input projections in an arena: at least those of a step in both directions."""
    return max(_LEAST_ROWS, min(_MOST_ROWS, _PROJECTION_BYTES // (8 * layer.dim * layer.dtype.itemsize)))


class Arena:
    """Buffers of one size on one stream; `lock` is held while work on them is queued.

    `z` [M, 2, 4 D] input projections and `scale` fp32 [M, 2] (see `pointwise.py`); `initial_h` [2, P]
    and `initial_c` [2, D] the state where a sequence starts.
    """

    def __init__(self, layer: Operands, device: torch.device, capture: Capture | None):
        self.device, self.capture, self.lock, rows = device, capture, threading.RLock(), rows_held(layer)
        self._buckets: dict[int, Bucket] = {}  # few, since `bucket_of` rounds
        self.z = torch.empty(rows, 2, 4 * layer.dim, device=device, dtype=layer.dtype)
        self.scale = torch.empty(rows, 2, device=device) if layer.dtype == torch.float16 else None
        self.initial_h = torch.empty(2, layer.projection, device=device)
        self.initial_c = torch.empty(2, layer.dim, device=device)

    def bucket(self, slots: int, layer: Operands) -> "Bucket":
        """The buffers of a bucket of slots, for layers of one size."""
        if slots not in self._buckets:
            self._buckets[slots] = Bucket(self.device, slots, layer)
        return self._buckets[slots]


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
        self.meta = self.h.new_empty(CHUNK + 1, 3, slots, dtype=torch.int32)
        self.out = self.h.new_empty(CHUNK, slots, 2 * layer.projection)
        self.graphs: weakref.WeakKeyDictionary[Operands, Graphs] = weakref.WeakKeyDictionary()


class Arenas:
    """A few arenas by key: the one unused for longest goes first, and those go whose weights are all gone."""

    def __init__(self):
        self._lock = threading.RLock()
        self.kept: weakref.WeakValueDictionary[Hashable, Arena] = weakref.WeakValueDictionary()  # used last: at the end
        self._of_weight = WeakTensorKeyDictionary()  # weight -> {key: arena}, which keeps the arena

    def get(self, key: Hashable, weight: torch.Tensor, make: Callable[[], Arena]) -> Arena:
        """The arena of `key`, made if there is none, for a layer that lives as long as `weight`."""
        with self._lock:
            arena = self.kept.pop(key, None) or make()
            self.kept[key] = self._of_weight.setdefault(weight, {})[key] = arena
            while len(self.kept) > _MOST_ARENAS:
                oldest = next(iter(self.kept))
                del self.kept[oldest]
                for arenas in self._of_weight.values():
                    arenas.pop(oldest, None)
            return arena
