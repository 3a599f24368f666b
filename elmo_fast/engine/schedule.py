"""Assign tokens to LSTM steps: sentences of different lengths run side by side and back to back.

A slot is a row of the batch: a stream of sentences that follow one another. A step runs the slots that still have a
token, so no padded position is computed.
"""

import functools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """Steps over slots. A packed row is a running slot of a step; rows are numbered by step, then by slot.

    `slots` int64 [slots]: the caller's slot at each position, longest stream first.
    `batch_sizes` int32 [steps]: number of slots that still run at each step; never grows. S is the sum.
    `tokens` int32 [2, S]: number of the token at each packed row; row 0 forward, row 1 backward.
    `sequence_starts` bool [S]: whether the packed row is the first of its sentence, the same in both directions.
    """

    slots: np.ndarray
    batch_sizes: np.ndarray
    tokens: np.ndarray
    sequence_starts: np.ndarray

    @functools.cached_property
    def is_in_order(self) -> bool:
        """Whether the slots are in the caller's order."""
        return bool((np.diff(self.slots) > 0).all())


_FEW_TOKENS = 256  # schedules of so few are cached, as calls with single sentences are alike


def batch_schedule(lengths: np.ndarray) -> Schedule:
    """The schedule of a batch, sentence k alone in slot k; `lengths` int [sentences]."""
    if lengths.sum() > _FEW_TOKENS or len(lengths) > _FEW_TOKENS:
        return make_schedule(lengths)
    return _cached_schedule(tuple(lengths.tolist()))


def make_schedule(lengths, slots=None, slot_count: int | None = None, continued: np.ndarray | None = None) -> Schedule:
    """Schedule sentences of `lengths` int [sentences]; `slots` int [sentences] names the slot of every sentence.

    Tokens are numbered sentence after sentence. Without `slots`, sentence k is alone in slot k. Sentences of one slot
    run in the order given. A slot without tokens never runs. `continued` bool [sentences]: whether the sentence began
    in an earlier schedule, by default False.
    """
    lengths = np.asarray(lengths, np.int64)
    slots = np.arange(lengths.size) if slots is None else np.asarray(slots, np.int64)
    slot_count = int(slots.max(initial=-1)) + 1 if slot_count is None else slot_count
    totals = np.bincount(slots, weights=lengths, minlength=slot_count).astype(np.int64)
    by_slot = np.argsort(slots, kind="stable")
    first_step = np.empty_like(lengths)  # the step at which a sentence begins in its slot
    first_step[by_slot] = _before(lengths[by_slot]) - _before(totals)[slots[by_slot]]
    order = np.argsort(-totals, kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(order.size)
    steps = int(totals.max(initial=0))
    batch_sizes = totals.size - np.cumsum(np.bincount(totals, minlength=steps + 1))[:steps]
    sentence = np.repeat(np.arange(lengths.size), lengths)  # [N]
    token, first = np.arange(sentence.size), _before(lengths)
    step = first_step[sentence] + token - first[sentence]
    row = _before(batch_sizes)[step] + position[slots[sentence]]  # the packed row of a token, forward
    tokens = np.empty((2, sentence.size), dtype=np.int32)
    tokens[0, row] = token
    tokens[1, row] = (2 * first + lengths - 1)[sentence] - token
    starts = np.zeros(sentence.size, dtype=bool)
    starts[row[first[lengths > 0]]] = True if continued is None else ~continued[lengths > 0]
    return Schedule(order, batch_sizes.astype(np.int32), tokens, starts)


@functools.lru_cache(maxsize=256)
def _cached_schedule(lengths: tuple[int, ...]) -> Schedule:
    return make_schedule(lengths)


def _before(counts: np.ndarray) -> np.ndarray:
    """For every count, the sum of the counts before it."""
    return np.cumsum(counts) - counts
