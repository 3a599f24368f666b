"""The projected LSTM on an NVIDIA GPU: input projections once for each row, then blocks of steps on one of two paths.

`choice` decides between the paths when a call runs, `steps` runs them. Off the GPU, which is for tests, the graph path
runs without graphs.
"""

import contextlib

import numpy as np
import torch

from elmo_fast.ops.cuda.blocks import Block, blocks
from elmo_fast.ops.cuda.buffers import Arena, Arenas
from elmo_fast.ops.cuda.graphs import capture_on
from elmo_fast.ops.cuda.operands import Operands, operands, scaled
from elmo_fast.ops.cuda.steps import MOST_SLOTS, Sent, Steps, host_arrays, multiply, send, stretch
from elmo_fast.ops.device import is_capturing
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.schemas import library

_arenas = Arenas()


def run(inputs, rows, slots, batch_sizes, sequence_starts, h, c, weights, initial_h, initial_c, width, cell_clip,
        proj_clip, packed, precomputed, precision, bounded, save):
    """The op (see `schemas`), in fp32. `rows` may lie on the host: each row is then multiplied once."""
    if is_capturing(inputs.device):
        raise RuntimeError("schedule: expected none while a CUDA graph is captured, since it was made on the host for "
                           "one batch, got one; call the model with ids, or use padded_lstm")
    order = np.arange(len(h)) if slots is None else slots.numpy()
    starts = None if sequence_starts is None else sequence_starts.numpy()
    with surroundings(precision, inputs.device):
        layer = operands(weights, precision, proj_clip)
        arena = arena_of(layer, weights[0], inputs.device)
        with arena.lock:
            steps = Steps(arena, layer, weights, (cell_clip, proj_clip))
            steps.begin(batch_sizes.numpy(), None if starts is None else (initial_h, initial_c), precision)
            out = _Call(steps, inputs, rows, starts, bounded).run(order, batch_sizes.numpy(), h, c)
    return *out, h.new_empty(0, dtype=torch.uint8)


library.impl("projected_lstm", run, "CUDA")


@contextlib.contextmanager
def surroundings(precision: str, device: torch.device):
    """GEMMs in fp32 or tf32 as `precision` says, on `device`; 16-bit ones have operands of that type already.

    Buffers outlive the call, so they must not be inference tensors, which nothing outside inference mode may edit.
    """
    where = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    products = numerics("highest" if precision == "medium" else precision, device)
    with torch.inference_mode(False), torch.no_grad(), where, products, torch.autocast(device.type, enabled=False):
        yield


def arena_of(layer: Operands, weight: torch.Tensor, device: torch.device) -> Arena:
    """The arena for a layer on the current stream. Inside somebody's capture it is one for this call alone."""
    if is_capturing(device):
        return Arena(layer, device, None)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    key = device, stream, layer.dim, layer.projection, layer.w_p is None, layer.dtype
    return _arenas.get(key, weight, lambda: Arena(layer, device, capture_on(device)))


def project(arena: Arena, layer: Operands, x: torch.Tensor, bounded: bool) -> None:
    """Input projections of x [n, I] for both directions, or of x [2, n, I], into the arena's first n rows.

    Rows for fp16 are `scaled`, unless `bounded` says that they fit.
    """
    count = x.shape[-2]
    z = arena.z[:count]
    if arena.scale is not None and bounded:
        arena.scale[:count] = 1
    elif arena.scale is not None:
        x, scale = scaled(x)
        arena.scale[:count] = scale[:, None] if x.dim() == 2 else scale.t()
    if x.dim() == 2:
        multiply(x.to(layer.dtype), layer.w_x.flatten(1), z.flatten(1))
    else:
        multiply(x.to(layer.dtype), layer.w_x.transpose(0, 1), z.transpose(0, 1))


class _Call:
    """One layer over one schedule: projects its inputs and runs its blocks."""

    def __init__(self, steps: Steps, inputs, rows, starts: np.ndarray | None, bounded: bool):
        self.steps, self.arena, self.inputs = steps, steps.arena, inputs.float()
        self.on_host = rows is not None and rows.device.type == "cpu"  # read without waiting
        self.rows = rows.numpy() if self.on_host else rows
        self.sequence_starts, self.bounded = starts, bounded
        # a table that is not much larger than what is read of it is projected in full
        self.in_full = rows is not None and len(inputs) <= min(len(self.arena.z), 2 * rows.shape[1])

    def run(self, slots: np.ndarray, batch_sizes: np.ndarray, h: torch.Tensor, c: torch.Tensor):
        """Outputs [S, 2 P] and the final state, [slots, 2 P] and [slots, 2 D] in the caller's order."""
        out = h.new_empty(int(batch_sizes.sum()), h.shape[1], dtype=torch.float32)
        # rows that are told apart on the host may all differ, in both directions
        most = len(self.arena.z) // (2 if self.on_host and not self.in_full else 1)
        cut = list(blocks(batch_sizes, most, MOST_SLOTS[self.steps.path]))
        arrays = [part for block in cut for part in self._host_arrays(block)]
        slots, places, *sent = send([slots.astype(np.int32), np.argsort(slots).astype(np.int32), *arrays], h.device)
        state = tuple(each.float().unflatten(1, (2, -1)).transpose(0, 1).index_select(1, slots) for each in (h, c))
        if self.in_full and cut:
            project(self.arena, self.steps.layer, self.inputs, self.bounded)
        for block in cut:
            *mine, used = (sent.pop(0) for _ in range(6))
            block = Sent(block, *mine)
            self._project(block, used)
            self.steps.run(block, state, out)
        return out, *(each.transpose(0, 1).index_select(0, places).flatten(1) for each in state)

    def _host_arrays(self, block: Block) -> list[np.ndarray]:
        """`host_arrays`, and the rows of the inputs to project for the block where the host knows them."""
        used = np.zeros(0, np.int32)
        if self.on_host:
            z_rows = self.rows[:, block.rows]  # [2, n]
            if not self.in_full:
                used, number = np.unique(z_rows, return_inverse=True)
                z_rows = number.reshape(2, -1)
        else:  # packed rows, which the device replaces by what they read, or their number in the block
            z_rows = [block.rows if self.in_full else np.arange(len(block.rows))] * 2
        return [*host_arrays(block, z_rows, self.sequence_starts), used.astype(np.int32)]

    def _project(self, sent: Sent, used: torch.Tensor) -> None:
        """The input projections of a block, unless they are there; and what the device alone knows of `meta`."""
        if self.in_full:
            if not self.on_host:
                steps = sent.meta[:-1, :2].long()
                read = torch.stack([self.rows[one][steps[:, one].clamp(min=0)] for one in (0, 1)], dim=1)
                sent.meta[:-1, :2] = torch.where(steps >= 0, read.int(), -1)
            return
        if self.on_host:
            x = self.inputs.index_select(0, used)
        elif self.rows is not None:
            x = self.inputs[self.rows[:, sent.rows.long()].long()]  # [2, n, I]
        else:
            there = stretch(sent.block.rows)
            x = self.inputs[there] if there else self.inputs.index_select(0, sent.rows)
            x = x.view(len(x), 2, -1).transpose(0, 1)
        project(self.arena, self.steps.layer, x, self.bounded)
