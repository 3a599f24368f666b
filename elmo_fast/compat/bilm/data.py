"""bilm-tf's module `bilm.data`: vocabularies, batchers, and data sets for training."""

import glob
import itertools
import logging
import os
import random
from collections.abc import Iterator

import numpy as np

from elmo_fast.arguments import check_count, check_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.compressed import open_text
from elmo_fast.nn.batching import Batcher, TokenBatcher
from elmo_fast.text.vocabulary import UnicodeCharsVocabulary, Vocabulary

# bilm-tf raises this error for options with 261 characters. Here the weight file decides the number of characters.
InvalidNumberOfCharacters = ConfigurationError

__all__ = ["Batcher", "BidirectionalLMDataset", "InvalidNumberOfCharacters", "LMDataset", "TokenBatcher",
           "UnicodeCharsVocabulary", "Vocabulary"]

logger = logging.getLogger(__name__)

Sentence = tuple[np.ndarray, np.ndarray | None]  # word ids int32 [T + 2], character ids [T + 2, C]


class LMDataset:
    """Sentences of the text files that match a glob, one tokenized sentence per line. From bilm-tf's `LMDataset`.

    A file is compressed if its name ends in .gz, .bz2, .xz or .zst.

    Files are read without end, in a new random order in every pass; with `test` once, in the reverse order of `glob`.
    `shuffle_on_load` shuffles the sentences of a file. Both use Python's `random` and give bilm-tf's order for the same
    seed. `reverse` reverses the sentences. Character ids need a `UnicodeCharsVocabulary`.
    """

    def __init__(self, filepattern: str | os.PathLike, vocab: Vocabulary, reverse: bool = False, test: bool = False,
                 shuffle_on_load: bool = False):
        self.vocab = vocab
        pattern = check_path("filepattern", filepattern)
        self._all_shards = list(filter(os.path.isfile, glob.glob(pattern)))
        if os.path.isdir(pattern):
            raise IsADirectoryError(f"filepattern: expected a glob, got the directory {pattern}; "
                                    f"{pattern.rstrip('/')}/* are its files")
        if not any(map(os.path.getsize, self._all_shards)):
            raise FileNotFoundError(f"filepattern: expected files of text, found none at {pattern}")
        self._reverse, self._test, self._shuffle_on_load = reverse, test, shuffle_on_load
        self._shards: list[str] = []
        self._sentences: Iterator[Sentence] = iter(())
        self._load_shard()

    def get_sentence(self) -> Iterator[Sentence]:
        """Yield the ids of one sentence after another, boundaries included."""
        while True:
            yield from self._sentences
            if self._test and not self._all_shards:
                return
            self._load_shard()

    def _load_shard(self) -> None:
        """Read the next file, and shuffle it with `shuffle_on_load`; its sentences are encoded when they are needed."""
        if not self._test and not self._shards:
            self._shards = list(self._all_shards)
            random.shuffle(self._shards)
        name = (self._all_shards if self._test else self._shards).pop()
        with open_text(name, "filepattern") as file:
            lines = file.read().split("\n")
        sentences = [line.split() for line in (lines if lines[-1] else lines[:-1])]
        if self._reverse:
            sentences = [sentence[::-1] for sentence in sentences]
        if self._shuffle_on_load:
            random.shuffle(sentences)
        logger.info("%s: %d sentences", name, len(sentences))
        self._sentences = map(self._encode, sentences)

    def _encode(self, sentence: list[str]) -> Sentence:
        ids = self.vocab.encode(sentence, self._reverse, split=False)
        if not isinstance(self.vocab, UnicodeCharsVocabulary):
            return ids, None
        return ids, self.vocab.encode_chars(sentence, self._reverse, split=False)

    @property
    def max_word_length(self) -> int | None:
        """Number of character ids per token; None for a vocabulary without characters."""
        return getattr(self.vocab, "max_word_length", None)

    def iter_batches(self, batch_size: int, num_steps: int) -> Iterator[dict[str, np.ndarray | None]]:
        """Yield batches of rows of text, until one cannot be filled.

        A batch has `token_ids` and `next_token_id`, int32 [batch_size, num_steps], and `tokens_characters`, int32
        [batch_size, num_steps, max_word_length], raw (no +1), or None. A row continues with the next sentence of the
        data set.
        """
        for name, size in (("batch_size", batch_size), ("num_steps", num_steps)):
            check_count(name, size)
        sentences = self.get_sentence()
        rows = [_predictions(sentences) for _ in range(batch_size)]
        while True:
            chunks = [list(itertools.islice(row, num_steps)) for row in rows]
            if min(map(len, chunks)) < num_steps:
                return
            ids, characters, targets = zip(*itertools.chain.from_iterable(chunks))
            yield {"token_ids": np.array(ids).reshape(batch_size, num_steps),
                   "tokens_characters": None if characters[0] is None else np.stack(characters).reshape(
                       batch_size, num_steps, -1),
                   "next_token_id": np.array(targets).reshape(batch_size, num_steps)}


class BidirectionalLMDataset:
    """Two independent `LMDataset`, the second reversed. From bilm-tf's `BidirectionalLMDataset`."""

    def __init__(self, filepattern: str | os.PathLike, vocab: Vocabulary, test: bool = False,
                 shuffle_on_load: bool = False):
        self.vocab = vocab
        self._data_forward, self._data_reverse = (LMDataset(filepattern, vocab, reverse, test, shuffle_on_load)
                                                  for reverse in (False, True))

    def iter_batches(self, batch_size: int, num_steps: int) -> Iterator[dict[str, np.ndarray | None]]:
        """Yield batches as `LMDataset.iter_batches`; the arrays of reversed text have names that end in `_reverse`."""
        batches = (data.iter_batches(batch_size, num_steps) for data in (self._data_forward, self._data_reverse))
        for forward, reverse in zip(*batches):
            yield {**forward, **{f"{name}_reverse": values for name, values in reverse.items()}}


def _predictions(sentences: Iterator[Sentence]) -> Iterator[tuple[np.int32, np.ndarray | None, np.int32]]:
    """Yield the id, the characters and the next token's id for every token of a row."""
    for ids, characters in sentences:
        yield from zip(ids[:-1], itertools.repeat(None) if characters is None else characters, ids[1:])
