"""The projected LSTM on an NVIDIA GPU: input projections once for each row, then blocks of steps on one of two paths.

Off the GPU, which is for tests, the graph path runs without graphs.
"""

import contextlib
from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.ops.cuda.blocks import CHUNK, Arena, Arenas, DeviceBlock, Operands, blocks, host_arrays, operands, send
from elmo_fast.ops.cuda.graphs import capture_on
from elmo_fast.ops.cuda.steps import MOST_SLOTS, Steps, gemm, pointwise_of, queue_steps
from elmo_fast.ops.device import is_capturing, on, to_host
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schemas import flat_weights, library, limit

_arenas = Arenas()


def run(inputs, rows, slots, batch_sizes, sequence_starts, h, c, weights, initial_h, initial_c, width, cell_clip,
        proj_clip, packed, precomputed, precision, bounded, save):
    """The op (see `schemas`), in fp32. `rows` are read on the host: from a GPU they are copied back."""
    if is_capturing(inputs.device):
        raise RuntimeError("schedule: expected none while a CUDA graph is captured, since it was made on the host for "
                           "one batch, got one; call the model with ids, or use padded_lstm")
    order = np.arange(len(h)) if slots is None else slots.numpy()
    starts, batch_sizes = None if sequence_starts is None else sequence_starts.numpy(), batch_sizes.numpy()
    with prepared(weights, precision, proj_clip, inputs.device) as (layer, arena):
        steps = Steps(arena, layer, weights, (cell_clip, proj_clip))
        steps.begin(batch_sizes, None if starts is None else (initial_h, initial_c), precision)
        out = _Call(steps, inputs, rows, starts, bounded).run(order, batch_sizes, h, c)
    return *out, h.new_empty(0, dtype=torch.uint8)


library.impl("projected_lstm", run, "CUDA")


@contextlib.contextmanager
def prepared(weights: Sequence[torch.Tensor], precision: str, proj_clip: float, device: torch.device):
    """The operands and the arena of a layer on the current stream; in a user's capture an arena of the call's own.

    In the body GEMMs are in fp32 or tf32 as `precision` says; 16-bit ones have operands of that type already. Buffers
    outlive the call, so they must not be inference tensors, which nothing outside inference mode may edit.
    """
    products = numerics("highest" if precision == "medium" else precision, device)
    with torch.inference_mode(False), torch.no_grad(), on(device), products, torch.autocast(device.type, enabled=False):
        layer = operands(weights, precision, proj_clip)
        if is_capturing(device):
            arena = Arena(layer, device, None)
        else:
            stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
            key = device, stream, layer.dim, layer.projection, layer.w_p is None, layer.dtype
            arena = _arenas.get(key, weights[0], lambda: Arena(layer, device, capture_on(device)))
        with arena.lock:
            yield layer, arena


def project(arena: Arena, layer: Operands, x: torch.Tensor, bounded: bool) -> None:
    """Input projections of x [n, I] for both directions, or of x [2, n, I], into the arena's first n rows.

    Rows for fp16 are `scaled`, unless `bounded` says that they fit.
    """
    count, shared = x.shape[-2], x.dim() == 2
    z = arena.z[:count]
    if arena.scale is not None and bounded:
        arena.scale[:count] = 1
    elif arena.scale is not None:
        x, scale = scaled(x)
        arena.scale[:count] = scale[:, None] if shared else scale.t()
    w_x, z = (layer.w_x.flatten(1), z.flatten(1)) if shared else (layer.w_x.transpose(0, 1), z.transpose(0, 1))
    gemm(x.to(layer.dtype), w_x, z)


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 rows [..., I] that fit fp16: each divided by a power of two that brings its largest finite value below 2^15.

    Also returns those powers, fp32 [...].
    """
    largest = x.abs().nan_to_num_(0, 0).amax(-1)
    scale = torch.frexp(largest).exponent.sub_(15).clamp_(min=0).exp2()
    return x / scale[..., None], scale


class _Call:
    """One layer over one schedule: projects its inputs and runs its blocks."""

    def __init__(self, steps: Steps, inputs, rows, starts: np.ndarray | None, bounded: bool):
        self.steps, self.arena, self.inputs = steps, steps.arena, inputs.float()
        self.rows = None if rows is None else to_host(rows).numpy()
        self.sequence_starts, self.bounded = starts, bounded
        # a table that is not much larger than what is read of it is projected in full
        self.in_full = rows is not None and len(inputs) <= min(len(self.arena.z), 2 * rows.shape[1])

    def run(self, slots: np.ndarray, batch_sizes: np.ndarray, h: torch.Tensor, c: torch.Tensor):
        """Outputs [S, 2 P] and the final state, [slots, 2 P] and [slots, 2 D] in the caller's order."""
        out = h.new_empty(int(batch_sizes.sum()) + 1, h.shape[1], dtype=torch.float32)  # `Steps.run` needs the last row
        # rows that are told apart may all differ, in both directions
        most = len(self.arena.z) // (1 if self.rows is None or self.in_full else 2)
        cut = list(blocks(batch_sizes, most, MOST_SLOTS[self.steps.path]))
        arrays = [part for block in cut for part in self._host_arrays(block)]
        orders = [slots.astype(np.int32), np.argsort(slots).astype(np.int32)]
        slots, positions, *arrived = send([*orders, *arrays], h.device)
        state = tuple(part.float().unflatten(1, (2, -1)).transpose(0, 1).index_select(1, slots) for part in (h, c))
        if self.in_full and cut:
            project(self.arena, self.steps.layer, self.inputs, self.bounded)
        for block in cut:
            *mine, read = (arrived.pop(0) for _ in range(4))
            self._project(block, read)
            self.steps.run(DeviceBlock(block, *mine), state, out)
        return out[:-1], *(part.transpose(0, 1).index_select(0, positions).flatten(1) for part in state)

    def _host_arrays(self, block) -> list[np.ndarray]:
        """`host_arrays`, and the rows of the inputs to project for the block."""
        z_rows, read = [np.arange(len(block.rows))] * 2, block.rows
        if self.rows is not None:
            z_rows = self.rows[:, block.rows]  # [2, n]
        if self.rows is not None and not self.in_full:
            read, number = np.unique(z_rows, return_inverse=True)
            z_rows = number.reshape(2, -1)
        return [*host_arrays(block, z_rows, self.sequence_starts), read.astype(np.int32)]

    def _project(self, block, read: torch.Tensor) -> None:
        """The input projections of a block, unless projected in full."""
        if self.in_full:
            return
        all_slots = self.rows is None and block.rows[-1] - block.rows[0] < len(block.rows)
        x = self.inputs[block.rows[0] : block.rows[-1] + 1] if all_slots else self.inputs.index_select(0, read)
        if self.rows is None:
            x = x.view(len(x), 2, -1).transpose(0, 1)  # [2, n, I]
        project(self.arena, self.steps.layer, x, self.bounded)


def padded_lstm(inputs: torch.Tensor, lengths: torch.Tensor, state: State, weights: tuple[LstmWeights, LstmWeights], *,
                cell_clip: float | None = None, proj_clip: float | None = None,
                precision: str = "highest") -> tuple[torch.Tensor, State]:
    """One layer of a two-direction LSTM over a padded batch whose lengths only the GPU has, for a user's CUDA graph.

    Shapes are static and every step runs for every sentence; a position past a sentence's end changes nothing. Steps
    are queued plainly, on buffers of the call's own, which belong to that graph.

    `inputs` [B, T, I] for both directions or [B, T, 2 I], forward half first; `lengths` int [B] on their device;
    `state` (h [B, 2 P], c [B, 2 D]) and `weights` as in `reference.projected_lstm`. Returns fp32 outputs [B, T, 2 P] by
    position, zero past a sentence's end, and the final state; nothing is read back.
    """
    clips, most = (limit(cell_clip), limit(proj_clip)), MOST_SLOTS["graph"]
    groups = [_padded_group(*parts, weights, clips, precision)
              for parts in zip(inputs.split(most), lengths.split(most), zip(*(part.split(most) for part in state)))]
    outputs, hs, cs = zip(*groups)
    return torch.cat(outputs), (torch.cat(hs), torch.cat(cs))


def _padded_group(inputs, lengths, state, weights, clips, precision):
    batch, longest, width = inputs.shape
    flat, projection = flat_weights(weights), state[0].shape[1] // 2
    directions = inputs[:, :, None] if len(flat[0]) - projection == width else inputs.unflatten(2, (2, -1))
    slot, step = (torch.arange(size, device=inputs.device) for size in (batch, longest))
    backward = (lengths - 1 - step[:, None]).clamp(min=-1)  # [T, B]
    positions = torch.stack([torch.where(backward >= 0, step[:, None], -1), backward])  # read at each step; -1: none
    with prepared(flat, precision, clips[1], inputs.device) as (layer, arena):
        bucket, at_once = arena.bucket(batch, layer), min(CHUNK, max(1, len(arena.z) // batch))
        for own, given in zip((bucket.h, bucket.c, bucket.operand), (*state, state[0])):
            own.copy_(given.unflatten(1, (2, -1)).transpose(0, 1))
        found = bucket.h.new_empty(longest, batch, 2 * projection)
        bucket.meta[:, 2] = 0
        for here, out in zip(positions.split(at_once, dim=1), found.split(at_once)):  # [2, steps, B]
            x = [directions[slot, here[k].clamp(min=0), k % directions.shape[2]].flatten(0, 1) for k in (0, 1)]
            project(arena, layer, torch.stack(x).float(), False)
            number = torch.arange(len(out) * batch, device=inputs.device).view(-1, batch)
            bucket.meta[: len(out), :2] = torch.where(here >= 0, number, -1).transpose(0, 1).int()
            queue_steps(arena, layer, bucket, pointwise_of(inputs.device), len(out), clips)
            out.copy_(bucket.out[: len(out)])
        final = tuple(part.transpose(0, 1).flatten(1).clone() for part in (bucket.h, bucket.c))
    halves = found.chunk(2, dim=2)
    mirrored = halves[1].gather(0, backward.clamp(min=0)[..., None].expand_as(halves[1]))
    by_position = torch.where((backward >= 0)[..., None], torch.cat([halves[0], mirrored], dim=2), 0)
    return by_position.transpose(0, 1), *final
