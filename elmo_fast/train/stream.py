"""A corpus as rows of running text: sentences in a shuffled order, packed into rows of a fixed number of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.train.shards import Lines, Shard

Place = tuple[int, int, int]  # epoch, shard and sentence, both numbered in that epoch's order


@dataclass(frozen=True)
class Order:
    """In which order sentences come. Without a seed: file after file, line after line, once.

    Each of `streams` streams takes every `streams`-th sentence of one shuffled order, from number `stream` on;
    forward and reverse text are shuffled apart. With `reverse` a sentence is read from its end.
    """

    seed: int | None = None
    reverse: bool = False
    stream: int = 0
    streams: int = 1

    def shards(self, epoch: int, count: int) -> np.ndarray:
        """Numbers of the shards in the order of an epoch: int64 [count]."""
        return np.arange(count) if self.seed is None else self._generator(epoch).permutation(count)

    def sentences(self, epoch: int, shard: int, count: int) -> np.ndarray:
        """Numbers of this stream's sentences of a shard, in the order of an epoch."""
        order = np.arange(count) if self.seed is None else self._generator(epoch, shard + 1).permutation(count)
        return order[self.stream :: self.streams]

    def _generator(self, *which: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(self.reverse), *which])


class Sentences:
    """Framed sentences of one order, from any place on: lists that begin with `<S>` and end with `</S>`.

    Holds the line index of one shard at a time.
    """

    def __init__(self, shards: Sequence[Shard], order: Order, start: Place = (0, 0, 0)):
        if sum(shard.sentences > order.stream for shard in shards) == 0:
            raise ValueError(f"train: expected a sentence for each of {order.streams} streams, "
                             f"got {sum(shard.sentences for shard in shards)} sentences")
        self._shards, self._order = list(shards), order
        self.place = start  # of the sentence that comes next
        self._open: tuple[tuple[int, int], Lines, np.ndarray] | None = None

    def next(self) -> tuple[Place, list[str]]:
        """The next sentence and its place; `StopIteration` after the last of an order without a seed."""
        epoch, shard, sentence = self.place
        while True:
            if shard == len(self._shards):
                epoch, shard = epoch + 1, 0
            if epoch and self._order.seed is None:
                raise StopIteration
            lines, numbers = self._at(epoch, shard)
            if sentence < len(numbers):
                self.place = epoch, shard, sentence + 1
                return (epoch, shard, sentence), self._framed(lines.tokens(int(numbers[sentence])))
            shard, sentence = shard + 1, 0

    def at(self, place: Place) -> list[str]:
        """The sentence at a place."""
        lines, numbers = self._at(*place[:2])
        return self._framed(lines.tokens(int(numbers[place[2]])))

    def _at(self, epoch: int, shard: int) -> tuple[Lines, np.ndarray]:
        if self._open is None or self._open[0] != (epoch, shard):
            number = int(self._order.shards(epoch, len(self._shards))[shard])
            lines = Lines(self._shards[number].path)
            if len(lines) != self._shards[number].sentences:
                raise ValueError(f"{lines.path}: expected the {self._shards[number].sentences} lines it had when the "
                                 f"run began, found {len(lines)}")
            self._open = (epoch, shard), lines, self._order.sentences(epoch, number, len(lines))
        return self._open[1:]

    def _framed(self, tokens: list[str]) -> list[str]:
        framed = [BEGIN_SENTENCE_TOKEN, *tokens, END_SENTENCE_TOKEN]
        return framed[::-1] if self._order.reverse else framed


class Rows:
    """Rows of `steps` inputs and the tokens that follow them, drawn from one order of sentences.

    A row that comes to its sentence's end takes the next sentence of the order; its last token is a target alone.
    From bilm-tf's `_get_batch`.
    """

    def __init__(self, shards: Sequence[Shard], order: Order, rows: int, steps: int, position: np.ndarray | None = None):
        """`position` int64 [1 + rows, 4], from `position()`, goes on where that was taken."""
        self._steps = steps
        start = (0, 0, 0) if position is None else tuple(position[0, :3].tolist())
        self._sentences = Sentences(shards, order, start)
        self._places: list[Place] = [(0, 0, 0)] * rows
        self._done = [0] * rows  # inputs already read of each row's sentence
        self._rows: list[list[str]] = [[]] * rows
        if position is not None:
            self._restore(position[1:])

    def _restore(self, rows: np.ndarray) -> None:
        places = [tuple(row) for row in rows.tolist()]
        for number in sorted(range(len(places)), key=places.__getitem__):
            *place, done = places[number]
            self._places[number], self._done[number] = tuple(place), done
            self._rows[number] = self._sentences.at(tuple(place)) if done >= 0 else []

    def position(self) -> np.ndarray:
        """Where the rows stand: int64 [1 + rows, 4]."""
        rows = [(*place, done if row else -1) for place, done, row in zip(self._places, self._done, self._rows)]
        return np.array([(*self._sentences.place, 0), *rows], dtype=np.int64)

    def next(self) -> tuple[list[str], list[str]]:
        """Inputs and targets, each rows * steps tokens, row after row; `StopIteration` when a row cannot be filled."""
        filled = [self._fill(row) for row in range(len(self._rows))]
        return tuple(list(chain.from_iterable(side)) for side in zip(*filled))

    def _fill(self, row: int) -> tuple[list[str], list[str]]:
        inputs: list[str] = []
        targets: list[str] = []
        while len(inputs) < self._steps:
            done = self._done[row]
            if done >= len(self._rows[row]) - 1:
                self._places[row], self._rows[row] = self._sentences.next()
                done = 0
            sentence = self._rows[row]
            ahead = min(len(sentence) - 1, done + self._steps - len(inputs))
            inputs += sentence[done:ahead]
            targets += sentence[done + 1 : ahead + 1]
            self._done[row] = ahead
        return inputs, targets
