"""Runs chunks of training steps as CUDA graphs, over buffers to which a chunk's values are copied, and from there back.

In a graph every slot takes every step. A slot that has no token at a step is idle: backward its gates pass the gradient
of c on unchanged, and its gradient of h is zero.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.ops.device import current_stream
from elmo_fast.ops.numerics import fp32_precision
from elmo_fast.ops.projected_lstm.arguments import LstmArguments
from elmo_fast.ops.projected_lstm.cuda.blocks import Arenas, Operands, bucket_of
from elmo_fast.ops.projected_lstm.cuda.graphs import Capture, Graphs, capture_on, run_chunk

_STEPS, _QUANTUM = 32, 4  # a graph has at most so many steps, and a multiple of so many: few graphs serve any length
_LEAST_SLOTS = 8
GATES = 1 << 24  # most of a graph: with more, by estimate, the copies cost more than the host's time that they save

_arenas = Arenas()


# ---- chunks ----------------------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Consecutive steps: their numbers, their packed rows, and for a graph the places of these in its buffers.

    `source` int32 [steps, L] is the packed row of each slot at each step, -1 where it is idle, and empty without a
    graph; `at` int32 [rows] is the place in `source` of each packed row.
    """

    steps: slice
    rows: slice
    source: np.ndarray
    at: np.ndarray

    slots = property(lambda self: self.source.shape[1])


class Places(NamedTuple):
    """The arrays of a chunk on the device: `source` int32 [steps L], `idle` bool [steps, L, 1, 1] or None, and `at`."""

    source: torch.Tensor
    idle: torch.Tensor | None
    at: torch.Tensor

    @classmethod
    def of(cls, chunk: Chunk, source: torch.Tensor, at: torch.Tensor) -> "Places | None":
        """Those of a chunk whose arrays were sent to a device; None if it runs without a graph."""
        if not chunk.source.size:
            return None
        if len(chunk.at) == chunk.source.size:
            return cls(source.flatten(), None, at)
        return cls(source.flatten().clamp(min=0), (source < 0)[..., None, None], at)

    def fill(self, buffer: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Copy values [S, ...] of all packed rows to the first steps of a buffer [steps, L, ...]; idle slots get 0."""
        part = buffer[: len(self.source) // buffer.shape[1]]
        torch.index_select(values, 0, self.source, out=part.flatten(0, 1))
        return part if self.idle is None else part.masked_fill_(self.idle, 0)

    def read(self, buffer: torch.Tensor, values: torch.Tensor) -> None:
        """Copy the chunk's rows of a buffer [steps, L, ...] to `values` [rows, ...]."""
        torch.index_select(buffer.flatten(0, 1), 0, self.at, out=values)


def chunks(batch_sizes: np.ndarray, has_start: np.ndarray, most_slots: int) -> Iterator[Chunk]:
    """Split a schedule of `batch_sizes` int [steps].

    Steps for which `has_start` bool [steps] says that a sequence starts, few steps and more than `most_slots` slots run
    without a graph: then `source` is empty.
    """
    ends, first = np.cumsum(batch_sizes), 0
    while first < len(batch_sizes):
        other = np.flatnonzero(has_start[first : first + _STEPS] != has_start[first])
        last = int(first + other[0]) if other.size else min(first + _STEPS, len(batch_sizes))
        sizes, rows = batch_sizes[first:last, None], slice(int(ends[first] - batch_sizes[first]), int(ends[last - 1]))
        slots, steps = bucket_of(max(_LEAST_SLOTS, int(sizes[0, 0]))), -(-len(sizes) // _QUANTUM) * _QUANTUM
        if has_start[first] or len(sizes) < _QUANTUM or slots > most_slots:
            slots = 0
        at = np.flatnonzero(np.arange(slots) < sizes).astype(np.int32)
        source = np.full((steps, slots), -1, np.int32)
        source.ravel()[at] = np.arange(rows.start, rows.stop)[: len(at)]
        yield Chunk(slice(first, last), rows, source, at)
        first = last


# ---- buffers ---------------------------------------------------------------------------------------------------------


class Buffers:
    """Memory for L slots of layers of a size, and the graphs over it; `dtype` of the forward's operands.

    Gates `z`, `grad_z` fp32 [steps, L, 2, 4 D] and `zh` fp32 [L, 2, 4 D]; `h` in the operand type and `grad_h` fp32
    [steps + 1, L, 2, P]; `c` fp32 [steps + 1, L, 2, D] and `grad_c` [L, 2, D]; `r` fp32 and `is_clipped` bool
    [steps, L, 2, P]; `m` in the operand type [L, 2, D] and `ms` fp32 [steps, L, 2, D].
    """

    def __init__(self, layer: Operands, slots: int, dtype: torch.dtype):
        new = functools.partial(torch.empty, device=layer.bias.device, dtype=torch.float32)
        gates, cells, values = ((slots, 2, size) for size in (4 * layer.dim, layer.dim, layer.projection))
        self.z, self.grad_z, self.zh = new(_STEPS, *gates), new(_STEPS, *gates), new(gates)
        self.h, self.grad_h = new(_STEPS + 1, *values, dtype=dtype), new(_STEPS + 1, *values)
        self.c, self.grad_c = new(_STEPS + 1, *cells), new(cells)
        self.r, self.is_clipped = new(_STEPS, *values), new(_STEPS, *values, dtype=torch.bool)
        self.m = new(cells, dtype=dtype)
        self.ms = self.grad_h[1:] if layer.w_p is None else new(_STEPS, *cells)
        self.graphs: Graphs = {}


class Arena:
    """The buffers of layers of the same size on a stream, and a layer's weights at the addresses that graphs read.

    Hold `lock` while queuing work on them.
    """

    def __init__(self, capture: Capture, dtype: torch.dtype):
        self.capture, self.lock, self._dtype = capture, threading.RLock(), dtype
        self._buckets: dict[int, Buffers] = {}
        self._held: dict[torch.dtype, Operands] = {}

    def hold(self, layer: Operands) -> Operands:
        """The layer with its recurrent weights, bias and projection at fixed addresses."""
        if layer.dtype not in self._held:
            self._held[layer.dtype] = dataclasses.replace(layer, w_x=layer.w_x.new_empty(0))
        held = self._held[layer.dtype]
        for to, values in zip((held.w_h, held.bias, held.w_p), (layer.w_h, layer.bias, layer.w_p)):
            if to is not values:
                to.copy_(values)
        return held

    def buffers(self, slots: int, layer: Operands) -> Buffers:
        """The buffers for so many slots."""
        if slots not in self._buckets:
            self._buckets[slots] = Buffers(layer, slots, self._dtype)
        return self._buckets[slots]

    def run(self, buffers: Buffers, key: tuple, work: Callable[[], None]) -> None:
        """Run `work` on the buffers; `key` has everything that it depends on beside them and the type of weights."""
        run_chunk(buffers.graphs, (*key, fp32_precision("cuda", "matmul")), work, self.capture)


@contextlib.contextmanager
def arena_of(call: LstmArguments, dtype: torch.dtype) -> Iterator[tuple[Arena | None, int]]:
    """The arena for products of operands in `dtype`, locked in the body, and the most slots of a graph.

    None and 0 where nothing is captured.
    """
    device, (_, dim, projection) = call.inputs.device, call.sizes
    most_slots = GATES // (8 * dim * _STEPS)
    capture = capture_on(device) if most_slots >= _LEAST_SLOTS else None
    if capture is None:
        yield None, 0
        return
    key = device, current_stream(device), dtype, dim, projection, len(call.weights)
    arena = _arenas.get(key, call.weights[0], lambda: Arena(capture, dtype))
    with arena.lock:
        yield arena, most_slots
