"""Rows of text to what one training step needs: unique tokens, targets, and the words sampled against them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.text import characters
from elmo_fast.text.vocabulary import Vocabulary
from elmo_fast.train.log_uniform import draw_unique, log_expected_count
from elmo_fast.train.shards import Shard
from elmo_fast.train.stream import Order, Rows


class Samples(NamedTuple):
    """Words for a sampled softmax in D directions; `words` are numbered by the vocabulary, all else by `words`.

    `words` int64 [R], sorted: the table's rows that take part. `targets` int64 [D, S], `drawn` int64 [D, K]; the logs
    of the expected counts of both float32; `hits` for each direction int64 [2, H]: where drawn words are the target.
    """

    words: torch.Tensor
    targets: torch.Tensor
    drawn: torch.Tensor
    log_targets: torch.Tensor
    log_drawn: torch.Tensor
    hits: tuple[torch.Tensor, ...]


class Batch(NamedTuple):
    """One step of one stream: S = steps * rows positions, step after step, in D directions.

    `tokens` int64 [U, C] are the ids of unique tokens (characters 1 to 261, or [U] word ids from 1), `rows` int64
    [D, S] the one at each position, `targets` int64 [D, S] word numbers. `position` int64 [D, 1 + rows, 4] is where the
    stream stands after the batch.
    """

    tokens: torch.Tensor
    rows: torch.Tensor
    targets: torch.Tensor
    samples: Samples | None
    position: torch.Tensor


@dataclass(frozen=True)
class Numbering:
    """How tokens become ids. `max_characters` is None for a model that reads words; `negatives` None samples none."""

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
        """The batch of (inputs, targets) of each direction, each rows * steps tokens, row after row.

        The words sampled depend on the seed, the stream and the step alone.
        """
        numbers: dict[str, int] = {}
        index = [_by_step([numbers.setdefault(token, len(numbers)) for token in inputs], rows) for inputs, _ in texts]
        targets = np.stack([_by_step(list(map(self.vocabulary.word_to_id, words)), rows) for _, words in texts])
        samples = None
        if self.negatives is not None:
            samples = sample(targets, self.negatives, self.vocabulary.size, [self.seed, 7, stream, step])
        return Batch(torch.from_numpy(self.tokens(list(numbers))), torch.from_numpy(np.stack(index)),
                     torch.from_numpy(targets), samples, torch.from_numpy(position))


def _by_step(row_after_row: list[int], rows: int) -> np.ndarray:
    return np.array(row_after_row, dtype=np.int64).reshape(rows, -1).T.reshape(-1)


def sample(targets: np.ndarray, count: int, size: int, seed: Sequence[int]) -> Samples:
    """Draw `count` different words of `size` for each direction of `targets` int64 [D, S]."""
    generator = np.random.default_rng(seed)
    draws = [draw_unique(generator, count, size) for _ in targets]
    drawn = np.stack([words for words, _ in draws])
    words, numbers = np.unique(np.concatenate([targets.ravel(), drawn.ravel()]), return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int64)
    hits = [np.stack(_hits(*each)) for each in zip(targets, drawn)]
    logs = [[log_expected_count(each, size, tries) for each, (_, tries) in zip(side, draws)] for side in (targets, drawn)]
    return Samples(torch.from_numpy(words), torch.from_numpy(numbers[: targets.size].reshape(targets.shape)),
                   torch.from_numpy(numbers[targets.size :].reshape(drawn.shape)),
                   *(torch.from_numpy(np.stack(each)) for each in logs), tuple(map(torch.from_numpy, hits)))


def _hits(targets: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions [H] and the numbers [H] of the drawn words that are their targets."""
    order = np.argsort(drawn)
    place = np.minimum(np.searchsorted(drawn, targets, sorter=order), len(drawn) - 1)
    found = order[place]
    positions = np.flatnonzero(drawn[found] == targets)
    return positions, found[positions]


class BatchStream(torch.utils.data.IterableDataset):
    """The batches of one stream, without end; with several workers each prepares every n-th, and they come in order."""

    def __init__(self, shards: Sequence[Shard], numbering: Numbering, orders: Sequence[Order], rows: int, steps: int,
                 first_step: int = 0, position: np.ndarray | None = None):
        """`orders` holds one order for each direction; `position` and `first_step` go on after a batch of the past."""
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


def load(stream: BatchStream, workers: int, pinned: bool) -> Iterator[Batch]:
    """The batches, prepared by `workers` processes (0: as they are asked for), in pinned memory beside a GPU."""
    return iter(torch.utils.data.DataLoader(stream, batch_size=None, num_workers=workers, pin_memory=pinned,
                                            prefetch_factor=4 if workers else None))
