"""A corpus as training batches: rows of a fixed number of steps, as ids, targets and sampled words.

Words are drawn as by TensorFlow's log-uniform candidate sampler, which bilm-tf trains with: word k of V, most frequent
first, has probability log((k + 2) / (k + 1)) / log(V + 1).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.text import characters
from elmo_fast.text.corpus import Order, Sentences, Shard
from elmo_fast.text.vocabulary import Vocabulary


class Rows:
    """Rows of `steps` inputs and the tokens that follow them, filled from the sentences of an order.

    A row at the end of its sentence takes the next sentence of the order; the last token is a target, never an input.
    From bilm-tf's `_get_batch`.
    """

    def __init__(self, shards: Sequence[Shard], order: Order, rows: int, steps: int,
                 position: torch.Tensor | None = None):
        """`position` int64 [1 + rows, 4], a value of `position()`, continues from there."""
        start = [(0, 0, 0, 0)] + [(0, 0, 0, -1)] * rows
        first, *locations = start if position is None else map(tuple, position.tolist())
        self._steps, self._sentences = steps, Sentences(shards, order, first[:3])
        self._locations = locations  # of the rows' sentences, and their inputs already read (-1: no sentence)
        self._rows: list[list[str]] = [[]] * rows
        for row in sorted(range(rows), key=locations.__getitem__):  # sorted: a group is opened once
            if locations[row][3] >= 0:
                self._rows[row] = self._sentences.at(locations[row][:3])

    def position(self) -> torch.Tensor:
        """Return the locations of the next sentence and of every row's, with its inputs read: int64 [1 + rows, 4]."""
        return torch.tensor([(*self._sentences.location, 0), *self._locations])

    def next(self) -> tuple[list[str], list[str]]:
        """Inputs and targets, both rows * steps tokens, row after row; `StopIteration` when a row cannot be filled."""
        inputs, targets = [], []
        for row, sentence in enumerate(self._rows):
            *location, offset = self._locations[row]
            count = self._steps
            while count:
                if offset >= len(sentence) - 1:
                    location, sentence = next(self._sentences)
                    offset = 0
                end = min(len(sentence) - 1, offset + count)
                inputs += sentence[offset:end]
                targets += sentence[offset + 1 : end + 1]
                count, offset = count - (end - offset), end
            self._locations[row], self._rows[row] = (*location, offset), sentence
        return inputs, targets


class Samples(NamedTuple):
    """Words for a sampled softmax in D directions. `words` are vocabulary numbers, all other fields index `words`.

    `words` int64 [R], sorted: the table's rows that take part. `targets` int64 [D, S], `drawn` int64 [D, K]; the logs
    of the expected counts of both float32; `hits` int64 [2, H] per direction: positions where a drawn word is the
    target, and its number.
    """

    words: torch.Tensor
    targets: torch.Tensor
    drawn: torch.Tensor
    log_targets: torch.Tensor
    log_drawn: torch.Tensor
    hits: tuple[torch.Tensor, ...]


def draw_samples(targets: np.ndarray, count: int, size: int, seed: Sequence[int]) -> Samples:
    """Draw `count` different words out of `size` for every direction of `targets` int64 [D, S]."""
    generator = np.random.default_rng(seed)
    draws = [draw_unique(generator, count, size) for _ in targets]
    drawn = np.stack([words for words, _ in draws])
    words, numbers = np.unique(np.concatenate([targets, drawn], axis=1), return_inverse=True)
    numbers = numbers.reshape(len(targets), -1).astype(np.int64)
    logs = [np.stack([log_expected_count(side, size, tries, count) for side, (_, tries) in zip(sides, draws)])
            for sides in (targets, drawn)]
    numbered = np.split(numbers, [targets.shape[1]], axis=1)
    return Samples(*map(torch.from_numpy, (words, *map(np.ascontiguousarray, numbered), *logs)),
                   tuple(torch.from_numpy(_hits(*pair)) for pair in zip(targets, drawn)))


def _hits(targets: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Positions where a drawn word is the target, and its number: int64 [2, H]."""
    order = np.argsort(drawn)
    nearest = order[np.minimum(np.searchsorted(drawn, targets, sorter=order), len(drawn) - 1)]
    positions = np.flatnonzero(drawn[nearest] == targets)
    return np.stack([positions, nearest[positions]])


def draw_unique(generator: np.random.Generator, count: int, size: int) -> tuple[np.ndarray, int]:
    """Return `count` different words below `size`, in the order of draws, and the number of draws: int64 [count], int.

    Words are drawn with replacement until `count` of them differ. `ValueError` if `size` is smaller.
    """
    if count > size:
        raise ValueError(f"n_negative_samples_batch: expected at most the {size} words of the vocabulary, got {count}")
    drawn = np.empty(0, dtype=np.int64)
    while True:
        draws = np.expm1(generator.random(max(2 * count, drawn.size)) * np.log1p(size)).astype(np.int64)
        drawn = np.concatenate([drawn, np.minimum(draws, size - 1)])
        words, first = np.unique(drawn, return_index=True)
        if len(words) >= count:
            order = np.argsort(first)[:count]
            return words[order], int(first[order[-1]]) + 1


def probabilities(words: np.ndarray, size: int) -> np.ndarray:
    """Log-uniform probabilities of word numbers below `size`: float64, the shape of `words`."""
    return np.log1p(1 / (np.asarray(words, dtype=np.float64) + 1)) / np.log1p(size)


def log_expected_count(words: np.ndarray, size: int, draws: int, count: int) -> np.ndarray:
    """Log of a word's expected count among `count` different words of `draws` draws, as TensorFlow's: float32.

    With more draws than words it is the probability that the word is among them, otherwise the mean of as many draws.
    """
    law = probabilities(words, size)
    return np.log(count * law if draws == count else -np.expm1(draws * np.log1p(-law))).astype(np.float32)


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

    def samples(self, targets: np.ndarray, stream: int, step: int) -> Samples | None:
        """Words for targets int64 [D, S], which depend only on the seed, the stream and the step."""
        if self.negatives is None:
            return None
        return draw_samples(targets, self.negatives, self.vocabulary.size, [self.seed, 7, stream, step])

    def batch(self, texts: Sequence[tuple[Sequence[str], Sequence[str]]], rows: int, position: torch.Tensor,
              stream: int = 0, step: int = 0) -> Batch:
        """The batch of (inputs, targets) of every direction, all rows * steps tokens, row after row."""
        numbers: dict[str, int] = {}
        index = _by_step([[numbers.setdefault(token, len(numbers)) for token in inputs] for inputs, _ in texts], rows)
        targets = _by_step([list(map(self.vocabulary.word_to_id, words)) for _, words in texts], rows)
        return Batch(*map(torch.from_numpy, (self.tokens(list(numbers)), index, targets)),
                     self.samples(targets, stream, step), position)


def _by_step(row_after_row: list[list[int]], rows: int) -> np.ndarray:
    """Reorder lists that go row after row: int64 [D, S], step after step."""
    numbers = np.array(row_after_row, dtype=np.int64)
    return numbers.reshape(len(numbers), rows, -1).swapaxes(1, 2).reshape(len(numbers), -1)


class BatchStream(torch.utils.data.IterableDataset):
    """Yields the endless batches of a stream, in order. Worker k of n prepares every n-th batch from batch k on."""

    def __init__(self, shards: Sequence[Shard], numbering: Numbering, orders: Sequence[Order], rows: int, steps: int,
                 first_step: int = 0, position: torch.Tensor | None = None):
        """`orders` has an order per direction; `position` and `first_step` continue after an earlier batch."""
        self._shards, self._numbering, self._orders = shards, numbering, orders
        self._rows, self._steps, self._first_step, self._position = rows, steps, first_step, position

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        number_of_worker, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        readers = [Rows(self._shards, order, self._rows, self._steps,
                        None if self._position is None else self._position[k]) for k, order in enumerate(self._orders)]
        for number in itertools.count():
            texts = [reader.next() for reader in readers]
            if number % workers == number_of_worker:
                position = torch.stack([reader.position() for reader in readers])
                yield self._numbering.batch(texts, self._rows, position, self._orders[0].stream,
                                            self._first_step + number)
