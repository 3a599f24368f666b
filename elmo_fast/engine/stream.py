"""Continuous batching: sentences run back to back in a fixed number of slots, and none waits for a longer one."""

import contextlib
import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import numpy as np

from elmo_fast.arguments import STATES, check_choice
from elmo_fast.engine.model import Model, RunState, State
from elmo_fast.engine.scheduler import Piece, Scheduler, Sentence
from elmo_fast.engine.tokens import SpareVectors

logger = logging.getLogger(__name__)

_ROWS_PER_CHUNK = 4096
_TOKENS_AHEAD = 1 << 15
_TABLE_ROWS = 1 << 15

_Numbered = list[tuple[int, np.ndarray]]


class SlotStream:
    """Embeds streams of sentences in at most `slots` slots, one stream after another, in a `state`.

    With carried states sentence i runs in slot i mod B, as in batches of B; otherwise in any free slot. Results equal
    those of batches and are in the order of the input. An empty sentence that is a batch by itself leaves the carried
    states unchanged, as in AllenNLP; with `runs_empty` it runs as `<S> </S>`, as in bilm-tf. `carried` are the states
    that the next stream starts from; they are those after a stream when it has ended.

    The streams share token vectors, which are computed again where the model's `key` differs; the first takes those of
    `spare`, and a stream that ends returns them. When memory runs out, chunks get fewer steps. An error in reading the
    sentences is raised after the results of the whole batches before it.
    """

    def __init__(self, model: Model, slots: int, state: str, runs_empty: bool = False,
                 spare: SpareVectors | None = None):
        self._model, self._slots, self._state = model, slots, check_choice("state", state, STATES)
        self._runs_empty = runs_empty
        self._spare = spare or SpareVectors(most=2 * _TABLE_ROWS)
        self._halvings = 0  # times that a chunk was halved after memory ran out
        self.carried: State | None = None

    def run(self, sentences: Iterable[Sequence[str]]) -> Iterator[np.ndarray]:
        """Vectors of each sentence, [layers, T, 2 P]."""
        sentences = iter(sentences)
        first = list(itertools.islice(sentences, self._slots))
        self._begin(max(1, len(first)))
        self._scheduler.read_from(itertools.chain(first, sentences))
        number = 0
        with contextlib.closing(self._chunks):
            while (self._step() or self._finished) and number < self._scheduler.end:
                while number in self._finished:
                    vectors = self._finished.pop(number)
                    self._scheduler.ahead -= vectors.shape[1] + 2
                    number += 1
                    yield vectors
        self._spare.put(self._tokens)
        if self._scheduler.error:
            raise self._scheduler.error
        if self._last and self._state == "carry":
            self.carried = above(self._model.last_state(self._last), self.carried)

    def run_as_they_come(self, take: Callable[[], Sequence[str] | None]) -> Iterator[tuple[int, _Numbered]]:
        """After every chunk, the number of rows computed and the finished sentences, [(number, vectors)].

        A free slot calls `take` for its next sentence, or None if there is none at present; sentences are numbered from
        0 in that order. Ends when no sentence runs. For `zero` and `warm` states.
        """
        self._begin(self._slots)
        self._scheduler.take_from(take)
        with contextlib.closing(self._chunks):
            while (rows := self._step()) or self._finished:
                finished, self._finished, self._scheduler.ahead = list(self._finished.items()), {}, 0
                yield rows, finished
        self._spare.put(self._tokens)

    def drop(self, numbers: Container[int]) -> None:
        """Cancel running sentences; to be called between two chunks of `run_as_they_come`."""
        self._scheduler.drop(numbers)

    def _begin(self, slots: int) -> None:
        self._tokens = self._spare.take()
        number = functools.partial(self._tokens.number, boundaries=self._model.boundaries)
        self._scheduler = Scheduler(slots, number, self._pass_over, self._state == "carry", self._runs_empty)
        self._finished: dict[int, np.ndarray] = {}
        self._chunks = self._model.chunks(slots)
        self._arriving: deque[Callable[[], list[Sentence]]] = deque()  # a function for each chunk in flight
        self._last: RunState | None = None
        self._limit_chunks()

    def _limit_chunks(self) -> None:
        """Set the steps and slots of a chunk; every halving reduces the steps, or the slots once there is one step."""
        slots = len(self._scheduler.queues)
        self._rows = max(1, slots * max(self._chunks.least_steps, _ROWS_PER_CHUNK // slots) >> self._halvings)
        self._steps, self._width = max(1, self._rows // slots), min(slots, self._rows)
        self._most_new = max(1, _TABLE_ROWS >> self._halvings)  # tokens encoded at a time

    def _step(self) -> int:
        """Plan and run a chunk of steps, which may go on, and collect earlier ones; returns the number of packed rows.

        Collects all chunks, and returns 0, if no sentence is left.
        """
        scheduler, rows = self._scheduler, 0
        most_ahead = max(_TOKENS_AHEAD, 32 * len(scheduler.queues)) + self._chunks.most_in_flight * self._rows
        while not rows and (pieces := scheduler.plan(self._steps, self._width, most_ahead)):
            try:
                with self._chunks.queue():
                    vectors = self._token_vectors(pieces)
                    self._last, arrival = self._chunks.run(pieces, scheduler.idle(pieces), vectors, self._last)
            except (RuntimeError, MemoryError) as error:
                scheduler.undo(pieces)
                self._shrink_chunks(error)
                continue
            self._arriving.append(arrival)
            rows = sum([piece.end - piece.begin for piece in pieces])
        while len(self._arriving) > (self._chunks.most_in_flight if rows else 0):
            self._finished.update((sentence.number, sentence.vectors) for sentence in self._arriving.popleft()())
        return rows

    def _shrink_chunks(self, error: RuntimeError | MemoryError) -> None:
        """Halve the chunks after an error of memory; raise other errors, and this error if chunks are minimal."""
        if not _is_out_of_memory(error) or self._rows == self._most_new == 1:
            raise error
        if not self._halvings:
            logger.warning("out of memory, chunks are smaller from here on: %s", str(error).partition("\n")[0])
        self._halvings += 1
        self._limit_chunks()

    def _token_vectors(self, pieces: list[Piece]) -> np.ndarray:
        """Encode new tokens, and begin the first chunk; the vectors of all tokens, where the model reads them."""
        scheduler, model = self._scheduler, self._model
        in_flight = [*itertools.chain(*scheduler.queues), *[piece.sentence for piece in pieces]]
        self._tokens.check(model.key(), in_flight)
        while new := self._tokens.unencoded(self._most_new):
            self._tokens.append(self._chunks.encode(new), self._chunks.empty)
        self._tokens.reduce(_TABLE_ROWS, in_flight)
        self._last = self._last or model.begin(len(scheduler.queues), self._state, self.carried)
        return self._tokens.encoded

    def _pass_over(self, sentence: Sentence) -> None:
        self._finished[sentence.number] = np.empty((self._model.num_layers, 0, self._model.output_dim), np.float32)


def above(new: State, old: State | None) -> State:
    """The rows of `new`, followed by the rows of `old` beyond them."""
    if old is None:
        return new
    return tuple(np.concatenate([first, further[:, first.shape[1] :]], axis=1) for first, further in zip(new, old))


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """Whether an allocation failed, in Python, C++, torch or CUDA."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in (
        "out of memory", "can't allocate memory", "not enough memory"))
