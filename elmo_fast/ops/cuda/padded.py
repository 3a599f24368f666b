"""The projected LSTM over a padded batch whose lengths only the GPU knows: for a user's CUDA graph.

Shapes are static and every step runs for every sentence; a position past a sentence's end changes nothing. Steps are
queued plainly, on buffers of the call's own, which belong to that graph.
"""

import torch

from elmo_fast.ops.cuda.blocks import CHUNKS
from elmo_fast.ops.cuda.lstm import arena_of, project, surroundings
from elmo_fast.ops.cuda.operands import operands
from elmo_fast.ops.cuda.steps import MOST_SLOTS, pointwise_of, queue_steps
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.schemas import flat_weights, limit


def padded_lstm(
    inputs: torch.Tensor,
    lengths: torch.Tensor,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    precision: str = "highest",
) -> tuple[torch.Tensor, State]:
    """One layer of a two-direction LSTM: `inputs` [B, T, I] for both directions or [B, T, 2 I], forward half first.

    `lengths` int [B] on the device of `inputs`; `state` (h [B, 2 P], c [B, 2 D]) and `weights` as in
    `reference.projected_lstm`. Returns fp32 outputs [B, T, 2 P] by position, zero past a sentence's end, and the final
    state; nothing is read back.
    """
    clips, most = (limit(cell_clip), limit(proj_clip)), MOST_SLOTS["graph"]
    groups = [_group(inputs[slots], lengths[slots], tuple(each[slots] for each in state), weights, clips, precision)
              for first in range(0, len(inputs), most) for slots in [slice(first, first + most)]]
    outputs, hs, cs = zip(*groups)
    return torch.cat(outputs), (torch.cat(hs), torch.cat(cs))


def _group(inputs, lengths, state, weights, clips, precision):
    batch, longest, width = inputs.shape
    flat, projection = flat_weights(weights), state[0].shape[1] // 2
    directions = inputs[:, :, None] if len(flat[0]) - projection == width else inputs.unflatten(2, (2, -1))
    with surroundings(precision, inputs.device):
        layer = operands(flat, precision, clips[1])
        arena = arena_of(layer, flat[0], inputs.device)
        with arena.lock:
            bucket, places = arena.bucket(batch, layer), _places(lengths, longest)  # [2, T, B]
            bucket.h.copy_(state[0].unflatten(1, (2, -1)).transpose(0, 1))
            bucket.c.copy_(state[1].unflatten(1, (2, -1)).transpose(0, 1))
            bucket.operand.copy_(bucket.h)
            found = bucket.h.new_empty(longest, batch, 2 * projection)
            at_once = min(CHUNKS[0], max(1, len(arena.z) // batch))
            for first in range(0, longest, at_once):
                here = slice(first, min(first + at_once, longest))
                _chunk(arena, layer, bucket, directions, places[:, here], clips, found[here])
            final = tuple(each.transpose(0, 1).flatten(1).clone() for each in (bucket.h, bucket.c))
    return _by_position(found, places[1]), *final


def _places(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """The position that each direction reads at each step, -1 past a sentence's end: int64 [2, T, B]."""
    step = torch.arange(longest, device=lengths.device)[:, None]
    backward = lengths - 1 - step
    return torch.stack([torch.where(backward >= 0, step, -1), backward.clamp(min=-1)])


def _chunk(arena, layer, bucket, directions, places, clips, found) -> None:
    """Some steps: `directions` [B, T, 1 or 2, I], `places` [2, steps, B], `found` [steps, B, 2 P]."""
    _, count, batch = places.shape
    slot = torch.arange(batch, device=places.device)
    rows = [directions[slot, places[k].clamp(min=0), k % directions.shape[2]].flatten(0, 1) for k in (0, 1)]
    project(arena, layer, torch.stack(rows).float(), False)  # [2, steps * B, I]
    number = torch.arange(count * batch, device=places.device).view(count, batch)
    bucket.meta[:count, :2] = torch.where(places >= 0, number, -1).transpose(0, 1).int()
    bucket.meta[:, 2] = 0
    queue_steps(arena, layer, bucket, pointwise_of(found.device), count, clips)
    found.copy_(bucket.out[:count])


def _by_position(found: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:
    """Outputs by step [T, B, 2 P] -> by position [B, T, 2 P], zero past the end, where `mirrored` [T, B] is -1."""
    forward, backward = found.chunk(2, dim=2)
    backward = backward.gather(0, mirrored.clamp(min=0)[..., None].expand_as(backward))
    return torch.where((mirrored >= 0)[..., None], torch.cat([forward, backward], dim=2), 0).transpose(0, 1)
