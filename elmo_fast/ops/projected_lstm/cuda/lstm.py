"""The projected LSTM on an NVIDIA GPU: input projections once per row, then blocks of steps on one of two paths.

The graph path runs chunks of steps as CUDA graphs over buffers at fixed addresses, so that a few graphs replay a
sequence of any length: data that differs between calls (rows, batch_sizes, starts) is in device memory. Off the GPU,
in tests, it runs without graphs.
"""

import contextlib
import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.engine.precision import has_16_bit_operands
from elmo_fast.ops import trial
from elmo_fast.ops.backend import why_no_kernel
from elmo_fast.ops.device import current_stream, on, refuse_capture, to_host
from elmo_fast.ops.library import library
from elmo_fast.ops.numerics import fp32_precision, gemm, numerics
from elmo_fast.ops.projected_lstm.arguments import LstmArguments
from elmo_fast.ops.projected_lstm.cuda import choice, persistent, training
from elmo_fast.ops.projected_lstm.cuda import pointwise as torch_pointwise
from elmo_fast.ops.projected_lstm.cuda.blocks import (
    Arena,
    Arenas,
    Block,
    Bucket,
    Operands,
    blocks,
    chunks_of,
    host_arrays,
    operands,
    send,
)
from elmo_fast.ops.projected_lstm.cuda.graphs import capture_on, run_chunk
from elmo_fast.ops.projected_lstm.reference import State

# slots that step together; more slots run in groups
MOST_SLOTS = {choice.GRAPH: 1024, choice.PERSISTENT: persistent.MOST_SLOTS}

_arenas = Arenas()


def run(*arguments, path: str | None = None):
    """The op, in fp32. `rows` on a GPU are copied to the host, where they are read. `path` as in `choice.choose`."""
    call = LstmArguments(*arguments)
    inputs, rows, h, c = call.inputs, call.rows, call.h, call.c
    refuse_capture(inputs.device)
    if call.save:
        return training.forward(call, pointwise_of(inputs.device))
    order = np.arange(len(h)) if call.slots is None else call.slots.numpy()
    starts = None if call.sequence_starts is None else call.sequence_starts.numpy()
    batch_sizes = call.batch_sizes.numpy()
    with prepared(call.weights, call.precision, (call.cell_clip, call.proj_clip), inputs.device) as steps:
        steps.begin(batch_sizes, None if starts is None else (call.initial_h, call.initial_c), path)
        inputs, rows, held = inputs.float(), None if rows is None else to_host(rows).numpy(), len(steps.arena.z)
        # Project all of inputs if they are not much larger than the rows that are read.
        in_full = rows is not None and 0 < len(inputs) <= min(held, 2 * rows.shape[1])
        # Otherwise a block projects its unique rows, at most two per packed row.
        all_blocks = list(blocks(batch_sizes, held // (1 if rows is None or in_full else 2), MOST_SLOTS[steps.path]))
        arrays = [order.astype(np.int32), np.argsort(order).astype(np.int32)]
        for block in all_blocks:
            z_rows, read = _rows_of_z(block, rows, in_full)
            arrays += [*host_arrays(block, z_rows, starts), read.astype(np.int32)]
        order, positions, *arrived = send(arrays, h.device)
        state = tuple(part.float().unflatten(1, (2, -1)).transpose(0, 1).index_select(1, order) for part in (h, c))
        out = h.new_empty(int(batch_sizes.sum()) + 1, h.shape[1], dtype=torch.float32)  # the last row: see `Steps.run`
        if in_full:
            steps.project(inputs, call.bounded)
        for block in all_blocks:
            *block_arrays, read = (arrived.pop(0) for _ in range(4))
            if not in_full:
                first, last = block.rows[[0, -1]]
                is_contiguous = rows is None and last - first < len(block.rows)
                x = inputs[first : last + 1] if is_contiguous else inputs.index_select(0, read)
                steps.project(x.view(len(x), 2, -1).transpose(0, 1) if rows is None else x, call.bounded)
            steps.run(block, block_arrays, state, out)
        final = (part.transpose(0, 1).index_select(0, positions).flatten(1) for part in state)
        return out[:-1], *final, h.new_empty(0, dtype=torch.uint8)


def run_backward(grad_out, grad_h, grad_c, saved, needed, *arguments):
    """The gradients of the op with `save`."""
    call = LstmArguments(*arguments)
    return training.backward(grad_out, grad_h, grad_c, saved, needed, call, pointwise_of(call.inputs.device))


library.impl("projected_lstm", run, "CUDA")
library.impl("projected_lstm_backward", run_backward, "CUDA")


@contextlib.contextmanager
def prepared(weights: Sequence[torch.Tensor], precision: str, clips: tuple[float, float], device: torch.device):
    """Yield the `Steps` of a layer over the arena of the current stream.

    In the body, GEMMs of fp32 operands run in fp32 or tf32 as `precision` says. Buffers outlive the call, so they must
    not be inference tensors, which cannot be written outside of inference mode.
    """
    products = numerics("highest" if has_16_bit_operands(precision) else precision, device)
    with torch.inference_mode(False), torch.no_grad(), on(device), products, torch.autocast(device.type, enabled=False):
        layer = operands(weights, precision, clips[1])
        key = device, current_stream(device), layer.dim, layer.projection, layer.w_p is None, layer.dtype
        arena = _arenas.get(key, weights[0], lambda: Arena(layer, device))
        with arena.lock:
            if arena.capture is None and not trial.trials.why_not(device, "captures"):
                arena.capture = capture_on(device)
            yield Steps(arena, layer, clips)


class Steps:
    """Projects inputs of a layer into an arena, whose lock the caller holds, and runs blocks of steps over them.

    `clips` of the cell and of the projection; infinite for no clipping.
    """

    def __init__(self, arena: Arena, layer: Operands, clips: tuple[float, float]):
        self.arena, self.layer, self.path, self.has_starts = arena, layer, choice.GRAPH, False
        self._clips, self._pointwise, self._is_asked = clips, pointwise_of(arena.device), False

    def begin(self, batch_sizes: np.ndarray, initial_state: State | None, path: str | None) -> None:
        """Choose the path of a call. `initial_state` (h [2 P], c [2 D]) of every sequence; None without start flags."""
        self._is_asked = path == choice.PERSISTENT
        if batch_sizes.any():
            self.path = choice.choose(self.arena.device, self.layer, int(batch_sizes[0]), path)
        self.has_starts = initial_state is not None
        if self.has_starts:
            self.arena.initial_h.copy_(initial_state[0].view_as(self.arena.initial_h))
            self.arena.initial_c.copy_(initial_state[1].view_as(self.arena.initial_c))

    def project(self, x: torch.Tensor, bounded: bool) -> None:
        """Write input projections of x [n, I] (shared by both directions) or [2, n, I] to the arena's first n rows.

        For fp16, a row is divided by a power of two that brings its largest finite value below 2^15, unless `bounded`
        says that all values fit.
        """
        count, shared, scale, w_x = x.shape[-2], x.dim() == 2, self.arena.scale, self.layer.w_x
        z = self.arena.z[:count]
        if scale is not None and bounded:
            scale[:count] = 1
        elif scale is not None:
            largest = x.abs().nan_to_num_(0, 0).amax(-1)  # [n] or [2, n]
            factors = torch.frexp(largest).exponent.sub_(15).clamp_(min=0).exp2()
            x = x / factors[..., None]
            scale[:count] = factors[:, None] if shared else factors.t()
        w_x, z = (w_x.flatten(1), z.flatten(1)) if shared else (w_x.transpose(0, 1), z.flatten(2).transpose(0, 1))
        gemm(x.to(self.layer.dtype), w_x, z)

    def run(self, block: Block, arrays: Sequence[torch.Tensor], state: State, out: torch.Tensor) -> None:
        """Run a block: update `state` (h [2, slots, P], c [2, slots, D]) and write its rows of `out` [S + 1, 2 P].

        `arrays` are the block's `host_arrays` on the device. Slots without a token, whose packed row is -1, write the
        last row of `out`.
        """
        if self.path == choice.PERSISTENT:
            if persistent.launch(self.arena, self.layer, self._clips, self.has_starts, block, arrays, state, out):
                return
            if self._is_asked:
                raise RuntimeError("path: the persistent path was asked for, and its launch was refused")
            self.path = choice.GRAPH
        bucket, (meta, packed_rows, _) = self.arena.bucket(block.bucket, self.layer), arrays
        buffers = bucket.h[:, : block.slots], bucket.c[:, : block.slots]
        block_state = tuple(part[:, block.slot : block.slot + block.slots] for part in state)
        for buffer, part in zip(buffers, block_state):
            buffer.copy_(part)
        bucket.operand.copy_(bucket.h)
        if self.has_starts:
            starts = meta[0, 2, :, None] != 0
            bucket.operand.copy_(torch.where(starts, self.arena.initial_h[:, None], bucket.operand))
        graphs = bucket.graphs.setdefault(self.layer, {})
        products = fp32_precision("cuda", "matmul")  # the strictest precision that running threads have set
        for first, count in chunks_of(block.steps):
            bucket.meta[: count + 1].copy_(meta[first : first + count + 1])
            work = functools.partial(self._queue, bucket, count)
            run_chunk(graphs, (count, *self._clips, products, self._pointwise), work, self.arena.capture)
            out[packed_rows[first : first + count]] = bucket.out[:count]
        for part, buffer in zip(block_state, buffers):
            part.copy_(buffer)

    def _queue(self, bucket: Bucket, count: int) -> None:
        """Queue `count` steps over a bucket's buffers, which outlive the graph of this work."""
        arena, layer, pointwise = self.arena, self.layer, self._pointwise
        proj_clip = math.inf if layer.w_p is None else self._clips[1]
        for number in range(count):
            meta = bucket.meta[number]
            gemm(bucket.operand, layer.w_h, bucket.zh)
            pointwise.gates(bucket.zh, arena.z, arena.scale, layer.bias, meta, arena.initial_c, bucket.c, bucket.m,
                            self._clips[0])
            if layer.w_p is not None:
                gemm(bucket.m, layer.w_p, bucket.r)
            pointwise.hidden(bucket.r, meta, bucket.meta[number + 1], arena.initial_h, bucket.h, bucket.operand,
                             bucket.out[number], proj_clip)


def pointwise_of(device: torch.device):
    """The module of the two pointwise kernels: Triton's if available, else torch operations."""
    if why_no_kernel(device, "pointwise"):
        return torch_pointwise
    from elmo_fast.kernels import lstm_pointwise

    return lstm_pointwise


def _rows_of_z(block: Block, rows: np.ndarray | None, in_full: bool) -> tuple[Sequence[np.ndarray], np.ndarray]:
    """The rows of z [2, n] that a block reads, and the rows of inputs to project into the first rows of z for it."""
    if rows is None:
        return [np.arange(len(block.rows))] * 2, block.rows
    if in_full:
        return rows[:, block.rows], block.rows[:0]
    read, number = np.unique(rows[:, block.rows], return_inverse=True)
    return number.reshape(2, -1), read
