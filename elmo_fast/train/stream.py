"""A corpus as rows of running text: sentences in a shuffled order, packed into rows of a fixed number of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.train.shards import Lines, Shard

Place = tuple[int, int, int]  # epoch, group of shards and sentence, numbered in that epoch's order

_MIXED_SENTENCES = 1 << 22  # of a group; 16 bytes each in memory
_MIXED_FILES = 256


@dataclass(frozen=True)
class Order:
    """In which order sentences come. Without a seed: file after file, line after line, once.

    With one, shards are shuffled, gathered into groups, and the sentences of a whole group are shuffled together: books
    of different authors, one after the other, would each make a model forget the last. Each of `streams` streams takes
    every `streams`-th sentence of that one order, from number `stream` on; forward and reverse text are shuffled apart.
    With `reverse` a sentence is read from its end.
    """

    seed: int | None = None
    reverse: bool = False
    stream: int = 0
    streams: int = 1

    def groups(self, epoch: int, shards: Sequence[Shard]) -> list[list[int]]:
        """Numbers of the shards of each group, in the order of an epoch."""
        if self.seed is None:
            return [[number] for number in range(len(shards))]
        groups: list[list[int]] = []
        room = 0
        for number in self._generator(epoch).permutation(len(shards)).tolist():
            if not groups or shards[number].sentences > room or len(groups[-1]) == _MIXED_FILES:
                groups.append([])
                room = _MIXED_SENTENCES
            groups[-1].append(number)
            room -= shards[number].sentences
        return groups

    def sentences(self, epoch: int, group: int, count: int) -> np.ndarray:
        """Numbers of this stream's sentences of a group that has `count`, in the order of an epoch."""
        order = np.arange(count) if self.seed is None else self._generator(epoch, group + 1).permutation(count)
        return order[self.stream :: self.streams]

    def _generator(self, *which: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(self.reverse), *which])


class Sentences:
    """Framed sentences of one order, from any place on: lists that begin with `<S>` and end with `</S>`.

    Holds the line indexes of one group of shards at a time.
    """

    def __init__(self, shards: Sequence[Shard], order: Order, start: Place = (0, 0, 0)):
        if sum(shard.sentences for shard in shards) < order.streams:
            raise ValueError(f"train: expected a sentence for each of {order.streams} streams, "
                             f"got {sum(shard.sentences for shard in shards)} sentences")
        self._shards, self._order = list(shards), order
        self.place = start  # of the sentence that comes next
        self._open: _Group | None = None

    def next(self) -> tuple[Place, list[str]]:
        """The next sentence and its place; `StopIteration` after the last of an order without a seed."""
        epoch, group, sentence = self.place
        first = epoch
        while True:
            if epoch > first + 1:
                raise ValueError(f"train: expected sentences for stream {self._order.stream} of {self._order.streams} in "
                                 "an epoch, got none: the groups of files have fewer sentences than there are streams")
            if epoch and self._order.seed is None:
                raise StopIteration
            here = self._at(epoch, group)
            if sentence < len(here.numbers):
                self.place = epoch, group, sentence + 1
                return (epoch, group, sentence), self._framed(here.tokens(sentence))
            group, sentence = group + 1, 0
            if group == here.groups:
                epoch, group = epoch + 1, 0

    def at(self, place: Place) -> list[str]:
        """The sentence at a place."""
        return self._framed(self._at(*place[:2]).tokens(place[2]))

    def _at(self, epoch: int, group: int) -> "_Group":
        if self._open is None or self._open.which != (epoch, group):
            groups = self._order.groups(epoch, self._shards)
            lines = [self._opened(self._shards[number]) for number in groups[group]]
            ends = np.cumsum([len(each) for each in lines])
            numbers = self._order.sentences(epoch, group, int(ends[-1]))
            self._open = _Group((epoch, group), len(groups), lines, ends, numbers)
        return self._open

    @staticmethod
    def _opened(shard: Shard) -> Lines:
        lines = Lines(shard.path)
        if len(lines) != shard.sentences:
            raise ValueError(f"{lines.path}: expected the {shard.sentences} lines it had when the run began, "
                             f"found {len(lines)}")
        return lines

    def _framed(self, tokens: list[str]) -> list[str]:
        framed = [BEGIN_SENTENCE_TOKEN, *tokens, END_SENTENCE_TOKEN]
        return framed[::-1] if self._order.reverse else framed


@dataclass(frozen=True)
class _Group:
    """Shards that are mixed: their lines, where each ends in one numbering of all, and the order of that numbering."""

    which: tuple[int, int]
    groups: int
    lines: list[Lines]
    ends: np.ndarray
    numbers: np.ndarray

    def tokens(self, sentence: int) -> list[str]:
        number = int(self.numbers[sentence])
        shard = int(np.searchsorted(self.ends, number, side="right"))
        return self.lines[shard].tokens(number - (int(self.ends[shard - 1]) if shard else 0))


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
