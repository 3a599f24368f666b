"""Runs a block of LSTM steps on the chosen path: chunks of steps as CUDA graphs, or a launch of the persistent kernel.

Chunks run over buffers at fixed addresses, so that a few graphs replay a sequence of any length; what differs between
calls (rows, batch_sizes, starts) lies in device memory.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from elmo_fast.ops import backend
from elmo_fast.ops.cuda import choice, persistent
from elmo_fast.ops.cuda.blocks import Arena, Bucket, DeviceBlock, Operands, blocks, chunks_of, host_arrays, send
from elmo_fast.ops.cuda.graphs import ChunkGraphs
from elmo_fast.ops.precision import fp32_precision
from elmo_fast.ops.reference import State
from elmo_fast.ops.torch import lstm_pointwise as torch_lstm_pointwise

MOST_SLOTS = {choice.GRAPH: 1024, choice.PERSISTENT: persistent.MOST_SLOTS}  # that step together; more run in groups


class Steps:
    """Runs blocks of steps of one layer over the input projections in an arena, whose lock is held.

    `clips` of the cell and of the projection, infinite for none.
    """

    def __init__(self, arena: Arena, layer: Operands, weights: Sequence[torch.Tensor], clips: tuple[float, float]):
        self.arena, self.layer, self.path, self.has_starts = arena, layer, choice.GRAPH, False
        self._weights, self._clips, self._pointwise = weights, clips, pointwise_of(arena.device)

    def begin(self, batch_sizes: np.ndarray, initial_state: State | None, precision: str) -> None:
        """Choose the path of a call. `initial_state` (h [2 P], c [2 D]) of every sequence, None for no start flags."""
        steps = int(np.count_nonzero(batch_sizes))
        if steps:
            device, slots = self.arena.device, int(batch_sizes[0])
            name, *size = choice.shape_class(self.layer, slots, steps)
            why_not = functools.partial(persistent.why_not, device, self.layer, self._weights, slots)
            self.path = choice.choose(
                f"{name}, {precision}", device, why_not,
                lambda: choice.measure(self._trial(*size), choice.TOLERANCES[self.layer.dtype], why_not))
        self.has_starts = initial_state is not None
        if initial_state is not None:
            self.arena.initial_h.copy_(initial_state[0].view_as(self.arena.initial_h))
            self.arena.initial_c.copy_(initial_state[1].view_as(self.arena.initial_c))

    def run(self, on_device: DeviceBlock, state: State, out: torch.Tensor) -> None:
        """One block: updates `state` (h [2, slots, P], c [2, slots, D]) and fills its rows of `out` [S + 1, 2 P].

        The last row is for slots without a token, which are rows -1.
        """
        if self.path == choice.PERSISTENT:
            if persistent.launch(self.arena, self.layer, self._weights, self._clips, self.has_starts, on_device, state,
                                 out):
                return
            self.path = choice.GRAPH
        block, bucket = on_device.block, self.arena.bucket(on_device.block.bucket, self.layer)
        own = bucket.h[:, : block.slots], bucket.c[:, : block.slots]
        given = tuple(part[:, block.slot : block.slot + block.slots] for part in state)
        for to, part in zip(own, given):
            to.copy_(part)
        bucket.operand.copy_(bucket.h)
        if self.has_starts:
            starts = on_device.meta[0, 2, :, None] != 0
            bucket.operand.copy_(torch.where(starts, self.arena.initial_h[:, None], bucket.operand))
        graphs = bucket.graphs.setdefault(self.layer, ChunkGraphs(self.arena.capture))
        products = fp32_precision("cuda", "matmul")  # the strictest of what threads hold by now
        for first, count in chunks_of(block.steps):
            bucket.meta[: count + 1].copy_(on_device.meta[first : first + count + 1])
            work = functools.partial(queue_steps, self.arena, self.layer, bucket, self._pointwise, count, self._clips)
            graphs.run((count, *self._clips, products), work)
            out[on_device.packed_rows[first : first + count]] = bucket.out[:count]
        for part, found in zip(given, own):
            part.copy_(found)

    def _trial(self, slots: int, steps: int) -> Callable[[str], tuple[torch.Tensor, ...]]:
        """A function that runs so many steps on a path, on random operands: outputs, h and c."""
        arena, size, rng = self.arena, steps * slots, np.random.default_rng(0)
        generator = torch.Generator(arena.device).manual_seed(0)
        before = tuple(initial.new_empty(2, slots, initial.shape[1]) for initial in (arena.initial_h, arena.initial_c))
        for operand in (arena.z, arena.initial_h, arena.initial_c, *before):
            operand.normal_(0, 0.5, generator=generator)
        if arena.scale is not None:
            arena.scale.fill_(1)
        self.has_starts = True
        starts, z_rows = rng.random(size) < 1 / 8, rng.integers(0, len(arena.z), (2, size))
        sent = {path: [DeviceBlock(block, *send(host_arrays(block, z_rows[:, block.rows], starts), arena.device))
                       for block in blocks([slots] * steps, size, MOST_SLOTS[path])] for path in choice.PATHS}

        def run_on(path: str) -> tuple[torch.Tensor, ...]:
            self.path, state = path, tuple(part.clone() for part in before)
            out = before[0].new_empty(size + 1, 2 * self.layer.projection)
            for block in sent[path]:
                self.run(block, state, out)
            return out[:-1], *state

        return run_on


def queue_steps(arena: Arena, layer: Operands, bucket: Bucket, pointwise, count: int,
                clips: tuple[float, float]) -> None:
    """Queue `count` steps over the bucket's buffers: the work of a graph. Every address in it outlives the graph."""
    proj_clip = math.inf if layer.w_p is None else clips[1]
    for step in range(count):
        meta = bucket.meta[step]
        gemm(bucket.operand, layer.w_h, bucket.zh)
        pointwise.gates(bucket.zh, arena.z, arena.scale, layer.bias, meta, arena.initial_c, bucket.c, bucket.m,
                        clips[0])
        if layer.w_p is not None:
            gemm(bucket.m, layer.w_p, bucket.r)
        pointwise.hidden(bucket.r, meta, bucket.meta[step + 1], arena.initial_h, bucket.h, bucket.operand,
                         bucket.out[step], proj_clip)


def gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a b, matrices or batches of them, summed in fp32 whatever their type."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.device.type == "cpu" and a.dtype != torch.float32:
        out.copy_(product(a.float(), b.float()))
    elif out.dtype == a.dtype:
        product(a, b, out=out)
    else:
        product(a, b, out_dtype=out.dtype, out=out)


def pointwise_of(device: torch.device):
    """The module of the two small kernels: Triton's where it runs, torch operations elsewhere."""
    if why_no_triton(device):
        return torch_lstm_pointwise
    from elmo_fast.kernels import lstm_pointwise

    return lstm_pointwise


@functools.cache
def why_no_triton(device: torch.device) -> str | None:
    """None where Triton's kernels run on `device`, else the reason that torch operations stand in for them."""
    if device.type != "cuda":
        return f"Triton has no kernels for {device.type}"
    return backend.why_no_triton(torch.cuda.get_device_capability(device))
