"""Assigns sentences to slots: sentences are read in order, and run in pieces, one chunk of steps after another.

The plan of a chunk says which rows its steps read, and where outputs are written, every sentence's own array.
"""

import functools
import heapq
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elmo_fast.engine.schedule import Schedule, make_schedule

_FEW_STEPS = 256  # of all pieces together: plans of so few are cached, as calls of single sentences are alike


@dataclass
class Sentence:
    """A sentence with BOS and EOS: rows of token vectors, steps scheduled, and the vectors so far [layers, T, 2 P].

    `place` is where a device has these vectors, -1 if it has none.
    """

    number: int
    rows: np.ndarray
    done: int = 0
    vectors: np.ndarray | None = None
    place: int = -1


class Piece(NamedTuple):
    """Steps `begin` to `end` of a sentence, run in a slot."""

    sentence: Sentence
    slot: int
    begin: int
    end: int


class Scheduler:
    """The queues of `slots` slots, and the reading of sentences into them.

    `rows_of` returns the rows of a sentence's tokens, `pass_over` receives a sentence that does not run. If states are
    `carried`, sentence i is for slot i mod slots, and an empty sentence alone in its batch runs only with `runs_empty`.
    `read` counts the sentences read, `ahead` their tokens until the caller subtracts them. An error ends the reading,
    and is stored as `error`.
    """

    def __init__(self, slots: int, rows_of: Callable[[Sequence[str]], np.ndarray],
                 pass_over: Callable[[Sentence], None], carried: bool, runs_empty: bool):
        self._rows_of, self._pass_over = rows_of, pass_over
        self._carried, self._runs_empty = carried, runs_empty
        self.queues: list[deque[Sentence]] = [deque() for _ in range(slots)]
        self.read = self.ahead = 0
        self.error: Exception | None = None
        self._take: Callable[[], Sequence[str] | None] | None = None
        self._following: Sequence[str] | None = None

    def read_from(self, sentences: Iterable[Sequence[str]]) -> None:
        """Read from `sentences`, always one sentence ahead of the scheduled sentences."""
        self._source = iter(sentences)
        self._following = self._fetch()

    def take_from(self, take: Callable[[], Sequence[str] | None]) -> None:
        """Call `take` for a sentence when a slot is free; it returns None if there is none at present."""
        self._take = take

    @property
    def end(self) -> float:
        """The number of results: infinite, or after an error in reading that of the whole batches before the error."""
        return self.read // len(self.queues) * len(self.queues) if self.error else math.inf

    def plan(self, steps: int, width: int, most_ahead: int) -> list[Piece]:
        """The pieces of the next chunk: at most `steps` steps in at most `width` slots; `most_ahead` limits `ahead`."""
        pieces: list[Piece] = []
        least: list[tuple[int, int]] = []  # planned steps and slots with room for more
        for slot in range(len(self.queues)):
            if len(pieces) == width:
                break
            self._add_piece(pieces, least, 0, slot, steps, most_ahead)
        heapq.heapify(least)
        while least:
            self._add_piece(pieces, least, *heapq.heappop(least), steps, most_ahead)
        return pieces

    def _add_piece(self, pieces: list[Piece], least: list[tuple[int, int]], planned: int, slot: int, steps: int,
                   most_ahead: int) -> None:
        """Add a piece for a slot of `planned` steps, and to the heap the slot if it has room for more."""
        queue = self.queues[slot]
        if not queue and not self._read_for(slot, most_ahead):
            return
        sentence = queue[0]
        begin, end = sentence.done, len(sentence.rows)
        if planned + end - begin < steps:
            heapq.heappush(least, (planned + end - begin, slot))
        elif planned + end - begin > steps:
            sentence.done = begin + steps - planned
            pieces.append(Piece(sentence, slot, begin, sentence.done))
            return
        sentence.done = end
        queue.popleft()
        pieces.append(Piece(sentence, slot, begin, end))

    def idle(self, pieces: Sequence[Piece]) -> list[Sentence]:
        """The sentences that began in earlier chunks and have no piece in this one."""
        running = {piece.slot for piece in pieces}
        return [queue[0] for slot, queue in enumerate(self.queues) if slot not in running and queue and queue[0].done]

    def undo(self, pieces: list[Piece]) -> None:
        """Put pieces that did not run back into the queues, in front."""
        for sentence, slot, begin, end in reversed(pieces):
            if end == len(sentence.rows):
                self.queues[slot].appendleft(sentence)
            sentence.done = begin

    def drop(self, numbers: Container[int]) -> None:
        """Remove sentences that are next in their slots."""
        for queue in self.queues:
            if queue and queue[0].number in numbers:
                queue.popleft()

    def _read_next(self, slot: int) -> bool:
        """Read a sentence, into `slot` unless states are carried; False at the end and after an error in reading."""
        tokens = self._take() if self._take else self._following
        if tokens is None:
            return False
        try:
            rows = self._rows_of(tokens)
        except Exception as error:
            if self._take:
                raise
            self.error, self._following = error, None
            return False
        self._following = None if self._take else self._fetch()
        is_alone = len(self.queues) == 1 or (self.read % len(self.queues) == 0 and self._following is None)
        is_passed_over = self._carried and is_alone and not self._runs_empty and not len(tokens)
        sentence = Sentence(self.read, rows)
        self.read += 1
        self.ahead += len(rows)
        if is_passed_over:
            self._pass_over(sentence)
        else:
            self.queues[sentence.number % len(self.queues) if self._carried else slot].append(sentence)
        return True

    def _read_for(self, slot: int, most_ahead: int) -> bool:
        """Read until the slot has a sentence; False when the stream ended or enough was read ahead."""
        while not self.queues[slot]:
            if self.ahead >= most_ahead or not self._read_next(slot):
                return False
        return True

    def _fetch(self) -> Sequence[str] | None:
        """The next sentence of the source; None at its end and after an error."""
        try:
            return next(self._source, None)
        except Exception as error:
            self.error = error
            return None


class ChunkPlan(NamedTuple):
    """The schedule of the pieces of a chunk, and the places of the outputs of all layers, the token layer first.

    The output of a layer and direction at a packed row goes to memory number `owners` int64 [2, S], `offsets` int64
    [layers, 2, S] rows of P values from its start. The first memories are those of the pieces, [layers, T, 2, P] in the
    order of the text, with T of `tokens` int64 [pieces]; the last is for `<S>` and `</S>`, which no result contains,
    [layers, pieces, 2, 2, P]. T is the length of a `whole` sentence; otherwise the number of the piece's steps, with
    the first token that the direction reads at 0.
    """

    schedule: Schedule
    owners: np.ndarray
    offsets: np.ndarray
    tokens: np.ndarray

    def addresses(self, pieces: Sequence[Piece]) -> tuple[np.ndarray, np.ndarray]:
        """The address of every output of the LSTM layers in the arrays of the pieces' sentences, uint64 [L, 2, S].

        Also the memory for `<S>` and `</S>`, to be kept meanwhile.
        """
        layers, _, width = pieces[0].sentence.vectors.shape
        boundaries = np.empty((layers, len(pieces), 2, width), np.float32)
        starts = np.array([memory.ctypes.data for memory in (*(p.sentence.vectors for p in pieces), boundaries)])
        return (starts[self.owners] + 2 * width * self.offsets[1:]).view(np.uint64), boundaries


def spans_of(pieces: Sequence[Piece]) -> list[tuple[int, int, int, int]]:
    """The slot, begin, end and number of rows of the sentence of every piece."""
    return [(slot, begin, end, len(sentence.rows)) for sentence, slot, begin, end in pieces]


def plan_of(spans: Sequence[tuple[int, int, int, int]], slots: int, layers: int,
            whole: Sequence[bool] | None = None) -> ChunkPlan:
    """The plan of pieces of these spans in `slots` slots, for `layers` layers with the token layer.

    All pieces are `whole` by default.
    """
    few = sum([end - begin for _, begin, end, _ in spans]) <= _FEW_STEPS
    return (_cached_plan if few else _plan)(tuple(spans), slots, layers, whole and tuple(whole))


def rows_of(pieces: Sequence[Piece], schedule: Schedule) -> np.ndarray:
    """The row of the token vector that each direction reads at each packed row, int32 [2, S]."""
    forward = [sentence.rows[begin:end] for sentence, _, begin, end in pieces]
    backward = [sentence.rows[len(sentence.rows) - end : len(sentence.rows) - begin]
                for sentence, _, begin, end in pieces]
    return in_packed_order(np.concatenate(forward + backward), schedule)


def in_packed_order(values: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Values of both directions in the order of the text, 2 S of them, at the packed rows [2, S]."""
    return values.reshape(-1).take(schedule.tokens + np.array([[0], [schedule.tokens.shape[1]]]))


def _plan(spans: Sequence[tuple[int, int, int, int]], slots: int, layers: int,
          whole: Sequence[bool] | None) -> ChunkPlan:
    slot, begin, end, length = np.array(spans).T
    counts, tokens = end - begin, length - 2  # steps of a piece, tokens of its memory
    offsets = np.cumsum(counts) - counts
    schedule = make_schedule(counts, slot, slots, begin > 0)
    # Row k of a piece in the order of the text is token begin + k forward and token length - end + k backward.
    origin = np.array([begin, length - end]) - 1
    if whole is not None:
        low, high, parts = np.maximum(begin - 1, 0), np.minimum(end - 1, tokens), ~np.array(whole)
        origin -= np.array([low, tokens - high]) * parts
        tokens = np.where(parts, high - low, tokens)
    sizes, first = 2 * tokens, 2 * (origin - offsets)  # rows of a layer of the memory; [2, pieces]
    first, stride = np.repeat(first, counts, axis=1), np.repeat(sizes, counts)  # [2, S], [S]
    first += 2 * np.arange(len(stride))
    first[1] += 1
    strides, owner = np.stack([stride, stride]), np.repeat(np.arange(len(spans)), counts)
    owners = np.stack([owner, owner])
    outside = 2 * np.arange(2 * len(spans)).reshape(-1, 2)  # [pieces, 2] of <S> and </S>
    for is_inside, rows, (forward, backward) in ((begin == 0, offsets, (0, 1)),
                                                 (end == length, offsets + counts - 1, (1, 0))):
        numbers = np.flatnonzero(is_inside)
        # Forward begins with <S> and ends with </S>; backward steps run from </S> to <S>.
        mirrored = (2 * offsets + counts - 1 - rows)[numbers]
        first[0, rows[numbers]] = outside[numbers, forward]
        first[1, mirrored] = outside[numbers, backward] + 1
        strides[0, rows[numbers]] = strides[1, mirrored] = 4 * len(spans)
        owners[0, rows[numbers]] = owners[1, mirrored] = len(spans)
    first, strides, owners = (in_packed_order(values, schedule) for values in (first, strides, owners))
    return ChunkPlan(schedule, owners, first + np.arange(layers)[:, None, None] * strides, tokens)


_cached_plan = functools.lru_cache(maxsize=256)(_plan)
