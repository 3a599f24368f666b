"""Which token each LSTM step reads: sentences of different lengths, side by side and back to back.

A lane is one row of the batch: a stream of sentences that follow each other. A step runs the lanes that still
have a token, so no padded position is ever computed.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """Steps over lanes. A step-row is one live lane of one step, numbered step by step and lane by lane inside.

    `lanes` int64 [lanes]: the caller's lane at each position, longest stream first.
    `live` int32 [steps]: how many positions still run at each step; never grows. S is their sum.
    `tokens` int32 [2, S]: number of the token at each step-row; row 0 forward, row 1 backward.
    `starts` bool [S]: whether the step-row is the first of its sentence, in both directions alike.
    """

    lanes: np.ndarray
    live: np.ndarray
    tokens: np.ndarray
    starts: np.ndarray


def make_schedule(lengths, lanes=None, lane_count: int | None = None) -> Schedule:
    """Schedule of sentences with `lengths` int [sentences], each in the lane `lanes` int [sentences] names.

    Tokens are numbered sentence after sentence. Without `lanes`, sentence k is alone in lane k. Sentences of one lane run in the order given. A lane without
    tokens never runs. Raises `ValueError` for negative lengths or lanes out of range.
    """
    lengths = _int_vector("lengths", lengths)
    lanes = np.arange(lengths.size) if lanes is None else _int_vector("lanes", lanes)
    if lanes.size != lengths.size:
        raise ValueError(f"lanes: expected one for each of {lengths.size} sentences, got {lanes.size}")
    lane_count = int(lanes.max(initial=-1)) + 1 if lane_count is None else lane_count
    if lanes.size and lanes.max() >= lane_count:
        raise ValueError(f"lanes: expected numbers below {lane_count}, got {int(lanes.max())}")
    first_step, totals = _first_steps(lengths, lanes, lane_count)
    order = np.argsort(-totals, kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(order.size)
    steps = int(totals.max(initial=0))
    live = _live(totals, steps)
    return _place(lengths, first_step, position[lanes], order, live.astype(np.int64))


def _int_vector(name: str, values) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"{name}: expected a vector of integers, got {array.dtype} of shape {array.shape}")
    if array.size and array.min() < 0:
        raise ValueError(f"{name}: expected no negative number, got {int(array.min())}")
    return array.astype(np.int64)


def _first_steps(lengths, lanes, lane_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Step at which each sentence begins in its lane, and the tokens of each lane."""
    by_lane = np.argsort(lanes, kind="stable")
    before = np.cumsum(lengths[by_lane]) - lengths[by_lane]
    totals = np.bincount(lanes, weights=lengths, minlength=lane_count).astype(np.int64)
    lane_before = np.cumsum(totals) - totals
    first_step = np.empty_like(lengths)
    first_step[by_lane] = before - lane_before[lanes[by_lane]]
    return first_step, totals


def _live(totals: np.ndarray, steps: int) -> np.ndarray:
    ending = np.bincount(totals, minlength=steps + 1)
    return totals.size - np.cumsum(ending)[:steps]


def _place(lengths, first_step, position, order, live) -> Schedule:
    first_row = np.cumsum(live) - live  # [steps]
    sentence = np.repeat(np.arange(lengths.size), lengths)  # [N]
    offset = np.arange(sentence.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    tokens = np.empty((2, sentence.size), dtype=np.int32)
    starts = np.zeros(sentence.size, dtype=bool)
    for direction, step_in_sentence in enumerate((offset, lengths[sentence] - 1 - offset)):
        step = first_step[sentence] + step_in_sentence
        row = first_row[step] + position[sentence]
        tokens[direction, row] = np.arange(sentence.size)
        starts[row] = step_in_sentence == 0
    return Schedule(order, live.astype(np.int32), tokens, starts)
