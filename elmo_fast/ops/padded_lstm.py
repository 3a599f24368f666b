"""The projected LSTM over a padded batch whose lengths only the GPU knows: for somebody's CUDA graph.

Shapes are static and every step runs for every sentence; a position past a sentence's end changes nothing. Steps are
queued plainly, on buffers of the call's own, which belong to that graph.
"""

import math

import torch

from elmo_fast.ops import stepwise_lstm as stepwise
from elmo_fast.ops.lstm_operands import operands
from elmo_fast.ops.reference import LstmWeights, State
from elmo_fast.ops.step_plan import CHUNKS, MOST_LANES


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
    limits = stepwise.limit(cell_clip), stepwise.limit(proj_clip)
    groups = [_group(inputs[lanes], lengths[lanes], tuple(each[lanes] for each in state), weights, limits, precision)
              for first in range(0, len(inputs), MOST_LANES) for lanes in [slice(first, first + MOST_LANES)]]
    outputs, hs, cs = zip(*groups)
    return torch.cat(outputs), (torch.cat(hs), torch.cat(cs))


def _group(inputs, lengths, state, weights, limits, precision):
    batch, longest, width = inputs.shape
    projection = state[0].shape[1] // 2
    directions = (inputs, inputs) if len(weights[0][0]) - projection == width else inputs.chunk(2, dim=2)
    with stepwise.surroundings(precision, inputs.device):
        of = operands(stepwise.flat_weights(weights), projection, precision, limits[1])
        arena = stepwise.arena_of(of, inputs.device)
        clips = limits[0], limits[1] if of.w_p is not None else math.inf
        with arena.lock:
            arena.hold(of, None)
            bucket = arena.bucket(batch)
            places = _places(lengths, longest)  # [2, T, B]
            bucket.h.copy_(stepwise.split_directions(state[0]))
            bucket.c.copy_(stepwise.split_directions(state[1]))
            bucket.operand.copy_(bucket.h)
            found = bucket.h.new_empty(longest, batch, 2 * projection)
            at_once = min(CHUNKS[0], max(1, len(arena.z) // batch))
            for first in range(0, longest, at_once):
                here = slice(first, min(first + at_once, longest))
                _chunk(arena, bucket, of, directions, places[:, here], clips, found[here])
            final = stepwise.join_directions(bucket.h), stepwise.join_directions(bucket.c)
    return _by_position(found, lengths), *final


def _places(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """The position that each direction reads at each step, -1 past a sentence's end: int64 [2, T, B]."""
    step = torch.arange(longest, device=lengths.device)[:, None]
    backward = lengths - 1 - step
    return torch.stack([torch.where(backward >= 0, step, -1), backward.clamp(min=-1)])


def _chunk(arena, bucket, of, directions, places, clips, found) -> None:
    """Some steps: `places` [2, steps, B], `found` [steps, B, 2 P]."""
    _, count, batch = places.shape
    lane = torch.arange(batch, device=places.device)
    rows = [x[lane, each.clamp(min=0)].flatten(0, 1) for x, each in zip(directions, places)]  # each [steps * B, I]
    stepwise.multiply_rows(arena, of, tuple(rows))
    number = torch.arange(count * batch, device=places.device).view(count, batch)
    bucket.meta[:count, :2] = torch.where(places >= 0, number, -1).transpose(0, 1).int()
    bucket.meta[:, 2] = 0
    stepwise.steps(arena, bucket, stepwise.pointwise_of(found.device), count, clips, False)
    found.copy_(bucket.out[:count])


def _by_position(found: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Outputs by step [T, B, 2 P] -> by position [B, T, 2 P], zero past the end."""
    forward, backward = found.transpose(0, 1).chunk(2, dim=2)
    at = torch.arange(len(found), device=found.device)
    mirrored = (lengths[:, None] - 1 - at).clamp(min=0)  # [B, T]
    backward = backward.gather(1, mirrored[..., None].expand(backward.shape))
    present = (at < lengths[:, None])[..., None]
    return torch.where(present, torch.cat([forward, backward], dim=2), 0)
