"""A corpus as training batches: shuffled sentences, packed into rows of a fixed number of steps, as ids and targets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.text import characters
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.corpus import Lines, Shard
from elmo_fast.train.loss import Samples, draw_samples

Location = tuple[int, int, int]  # epoch, group of shards and sentence, numbered in that epoch's order

_GROUP_SENTENCES = 1 << 22  # shuffled together; 16 bytes each in memory
_GROUP_FILES = 256


@dataclass(frozen=True)
class Order:
    """The order of sentences. Without a seed: file after file, line after line, once.

    With a seed, shards are shuffled and gathered into groups, and all sentences of a group are shuffled together: read
    book after book, a model forgets the books before. Stream number `stream` takes every `streams`-th sentence of that
    order, starting with its own number; forward and reverse text are shuffled independently. With `reverse` a sentence
    is read from its end.
    """

    seed: int | None = None
    reverse: bool = False
    stream: int = 0
    streams: int = 1

    def groups(self, epoch: int, shards: Sequence[Shard]) -> list[list[int]]:
        """Shard numbers of every group, in the order of an epoch."""
        if self.seed is None:
            return [[number] for number in range(len(shards))]
        groups: list[list[int]] = []
        capacity = 0
        for number in self._generator(epoch).permutation(len(shards)).tolist():
            if not groups or shards[number].sentences > capacity or len(groups[-1]) == _GROUP_FILES:
                groups.append([])
                capacity = _GROUP_SENTENCES
            groups[-1].append(number)
            capacity -= shards[number].sentences
        return groups

    def sentences(self, epoch: int, group: int, count: int) -> np.ndarray:
        """Numbers of this stream's sentences of a group that has `count`, in the order of an epoch."""
        order = np.arange(count) if self.seed is None else self._generator(epoch, group + 1).permutation(count)
        return order[self.stream :: self.streams]

    def _generator(self, *which: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(self.reverse), *which])


class Sentences:
    """Sentences in an order, from any location on: lists of tokens with `<S>` and `</S>` around them.

    Holds the line indexes of a single group of shards at a time.
    """

    def __init__(self, shards: Sequence[Shard], order: Order, start: Location = (0, 0, 0)):
        if sum(shard.sentences for shard in shards) < order.streams:
            raise ValueError(f"train: expected at least {order.streams} sentences, one per stream, "
                             f"got {sum(shard.sentences for shard in shards)} sentences")
        self._shards, self._order = list(shards), order
        self.location = start  # of the next sentence
        self._current: _Group | None = None

    def next(self) -> tuple[Location, list[str]]:
        """The next sentence and its location; `StopIteration` after the last sentence of an order without a seed."""
        epoch, group, sentence = self.location
        first = epoch
        while True:
            if epoch > first + 1:
                raise ValueError(f"train: expected sentences for stream {self._order.stream} of {self._order.streams} "
                                 "in an epoch, got none: groups of files have fewer sentences than streams")
            if epoch and self._order.seed is None:
                raise StopIteration
            current = self._group(epoch, group)
            if sentence < len(current.numbers):
                self.location = epoch, group, sentence + 1
                return (epoch, group, sentence), self._with_boundaries(current.tokens(sentence))
            group, sentence = group + 1, 0
            if group == current.groups:
                epoch, group = epoch + 1, 0

    def at(self, location: Location) -> list[str]:
        """The sentence at a location."""
        return self._with_boundaries(self._group(*location[:2]).tokens(location[2]))

    def _group(self, epoch: int, group: int) -> "_Group":
        if self._current is None or self._current.key != (epoch, group):
            groups = self._order.groups(epoch, self._shards)
            lines = [_open_lines(self._shards[number]) for number in groups[group]]
            ends = np.cumsum(list(map(len, lines)))
            numbers = self._order.sentences(epoch, group, int(ends[-1]))
            self._current = _Group((epoch, group), len(groups), lines, ends, numbers)
        return self._current

    def _with_boundaries(self, tokens: list[str]) -> list[str]:
        sentence = [BEGIN_SENTENCE_TOKEN, *tokens, END_SENTENCE_TOKEN]
        return sentence[::-1] if self._order.reverse else sentence


def _open_lines(shard: Shard) -> Lines:
    lines = Lines(shard.path)
    if len(lines) != shard.sentences:
        raise ValueError(f"{lines.path}: expected the {shard.sentences} lines it had when the run began, "
                         f"found {len(lines)}")
    return lines


@dataclass(frozen=True)
class _Group:
    """Shards shuffled together. `ends`: first line number after every shard, counted over all; `numbers`: the order."""

    key: tuple[int, int]  # epoch, group
    groups: int
    lines: list[Lines]
    ends: np.ndarray
    numbers: np.ndarray

    def tokens(self, sentence: int) -> list[str]:
        number = int(self.numbers[sentence])
        shard = int(np.searchsorted(self.ends, number, side="right"))
        return self.lines[shard].tokens(number - (int(self.ends[shard - 1]) if shard else 0))


class Rows:
    """Rows of `steps` inputs and the tokens that follow them, filled from the sentences of an order.

    A row at the end of its sentence takes the next sentence of the order; the last token is a target, never an input.
    From bilm-tf's `_get_batch`.
    """

    def __init__(self, shards: Sequence[Shard], order: Order, rows: int, steps: int,
                 position: np.ndarray | None = None):
        """`position` int64 [1 + rows, 4], a value of `position()`, continues from there."""
        self._steps = steps
        start = (0, 0, 0) if position is None else tuple(position[0, :3].tolist())
        self._sentences = Sentences(shards, order, start)
        self._locations: list[Location] = [(0, 0, 0)] * rows
        self._done = [0] * rows  # inputs already read of a row's sentence
        self._rows: list[list[str]] = [[]] * rows
        if position is not None:
            self._restore(position[1:])

    def _restore(self, rows: np.ndarray) -> None:
        saved = [tuple(row) for row in rows.tolist()]
        for number in sorted(range(len(saved)), key=saved.__getitem__):  # in order: a group is opened once
            *location, done = saved[number]
            self._locations[number], self._done[number] = tuple(location), done
            self._rows[number] = self._sentences.at(tuple(location)) if done >= 0 else []

    def position(self) -> np.ndarray:
        """Locations of the next sentence and of the rows' sentences with their inputs read: int64 [1 + rows, 4]."""
        rows = [(*location, done if row else -1)
                for location, done, row in zip(self._locations, self._done, self._rows)]
        return np.array([(*self._sentences.location, 0), *rows], dtype=np.int64)

    def next(self) -> tuple[list[str], list[str]]:
        """Inputs and targets, both rows * steps tokens, row after row; `StopIteration` when a row cannot be filled."""
        filled = [self._fill(row) for row in range(len(self._rows))]
        return tuple(list(chain.from_iterable(side)) for side in zip(*filled))

    def _fill(self, row: int) -> tuple[list[str], list[str]]:
        inputs: list[str] = []
        targets: list[str] = []
        while len(inputs) < self._steps:
            done = self._done[row]
            if done >= len(self._rows[row]) - 1:
                self._locations[row], self._rows[row] = self._sentences.next()
                done = 0
            sentence = self._rows[row]
            end = min(len(sentence) - 1, done + self._steps - len(inputs))
            inputs += sentence[done:end]
            targets += sentence[done + 1 : end + 1]
            self._done[row] = end
        return inputs, targets


# ---- ids -----------------------------------------------------------------------------------


class Batch(NamedTuple):
    """A step of a stream: S = steps * rows positions, step after step, in D directions.

    `tokens` int64 [U, C] are the ids of unique tokens (characters 1 to 261, or [U] word ids from 1), `rows` int64
    [D, S] the row of `tokens` at every position, `targets` int64 [D, S] word numbers. `position` int64 [D, 1 + rows, 4]
    is the position of the stream after the batch.
    """

    tokens: torch.Tensor
    rows: torch.Tensor
    targets: torch.Tensor
    samples: Samples | None
    position: torch.Tensor


@dataclass(frozen=True)
class Numbering:
    """Tokens to ids. `max_characters` None: the model reads words; `negatives` None: nothing is sampled."""

    vocabulary: Vocabulary
    max_characters: int | None
    negatives: int | None = None
    seed: int = 0

    def tokens(self, unique: Sequence[str]) -> np.ndarray:
        """Model ids of unique tokens: int64 [U, C], or [U] for words."""
        if self.max_characters is None:
            return np.array([self.vocabulary.word_to_id(token) + 1 for token in unique], dtype=np.int64)
        raw = characters.encode_tokens(unique, self.max_characters)
        return characters.to_model_ids(raw).astype(np.int64)

    def batch(self, texts: Sequence[tuple[list[str], list[str]]], rows: int, position: np.ndarray,
              stream: int = 0, step: int = 0) -> Batch:
        """The batch of (inputs, targets) of every direction, all rows * steps tokens, row after row.

        The sampled words depend only on the seed, the stream and the step.
        """
        numbers: dict[str, int] = {}
        index = [_by_step([numbers.setdefault(token, len(numbers)) for token in inputs], rows) for inputs, _ in texts]
        targets = np.stack([_by_step(list(map(self.vocabulary.word_to_id, words)), rows) for _, words in texts])
        samples = None
        if self.negatives is not None:
            samples = draw_samples(targets, self.negatives, self.vocabulary.size, [self.seed, 7, stream, step])
        return Batch(torch.from_numpy(self.tokens(list(numbers))), torch.from_numpy(np.stack(index)),
                     torch.from_numpy(targets), samples, torch.from_numpy(position))


def _by_step(row_after_row: list[int], rows: int) -> np.ndarray:
    return np.array(row_after_row, dtype=np.int64).reshape(rows, -1).T.reshape(-1)


class BatchStream(torch.utils.data.IterableDataset):
    """The endless batches of a stream. Worker k of n prepares every n-th batch; batches are returned in order."""

    def __init__(self, shards: Sequence[Shard], numbering: Numbering, orders: Sequence[Order], rows: int, steps: int,
                 first_step: int = 0, position: np.ndarray | None = None):
        """`orders`: an order per direction; `position` and `first_step` continue after an earlier batch."""
        super().__init__()
        self._shards, self._numbering, self._orders = list(shards), numbering, list(orders)
        self._rows, self._steps, self._first_step, self._position = rows, steps, first_step, position

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        own, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        starts = [None] * len(self._orders) if self._position is None else list(self._position)
        readers = [Rows(self._shards, order, self._rows, self._steps, start)
                   for order, start in zip(self._orders, starts)]
        step = self._first_step
        while True:
            texts = [reader.next() for reader in readers]
            if (step - self._first_step) % workers == own:
                position = np.stack([reader.position() for reader in readers])
                yield self._numbering.batch(texts, self._rows, position, self._orders[0].stream, step)
            step += 1


def load_batches(stream: BatchStream, workers: int, pinned: bool) -> Iterator[Batch]:
    """The batches, prepared by `workers` processes (0: in this process, on demand), in pinned memory for a GPU."""
    return iter(torch.utils.data.DataLoader(stream, batch_size=None, num_workers=workers, pin_memory=pinned,
                                            prefetch_factor=4 if workers else None))
