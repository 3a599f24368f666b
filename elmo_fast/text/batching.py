"""Sentences to padded id arrays: AllenNLP's `batch_to_ids`, bilm-tf's `Batcher` and `TokenBatcher`."""

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from elmo_fast.arguments import shown
from elmo_fast.outside_graphs import outside_graphs
from elmo_fast.text import characters
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN, UnicodeCharsVocabulary, Vocabulary

_Item = TypeVar("_Item")
BOUNDARIES = (characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN)


@outside_graphs
def batch_to_ids(batch: Sequence[Sequence[str]],
                 max_characters_per_token: int = characters.MAX_CHARACTERS_PER_TOKEN) -> torch.Tensor:
    """Character ids of a batch of tokenized sentences: int64 [sentences, longest, max_characters_per_token].

    Ids are 1 to 261, rows past a sentence's end are 0, and no sentence boundaries are added. From AllenNLP's
    `batch_to_ids`. Raises `ValueError` for an empty batch, for a sentence that is a string, and for a token that is not
    a string.
    """
    return torch.from_numpy(_pad(_at_least_one(batch, "batch"), max_characters_per_token))


def check_batch(batch: Iterable[Sequence[str]], name: str = "batch") -> list[tuple[str, ...]]:
    """Copies of the sentences of `batch`, also those of a generator; `ValueError` unless all are lists of tokens."""
    check_iterable(batch, name)
    return [check_sentence(sentence, f"{name}[{index}]") for index, sentence in enumerate(batch)]


def check_iterable(batch: Iterable, name: str = "batch") -> None:
    """Raise `ValueError` for anything but a collection or generator of sentences; strings and mappings are refused."""
    if isinstance(batch, (str, bytes, Mapping)) or not isinstance(batch, Iterable) or not getattr(batch, "ndim", 1):
        raise ValueError(f"{name}: expected a list of tokenized sentences, got {type(batch).__name__}")


def check_sentence(sentence: Sequence[str], name: str = "sentence") -> tuple[str, ...]:
    """A copy of the sentence, whose list the caller may fill anew; `ValueError` unless it is a list of tokens.

    For a string the error says how to split it.
    """
    if isinstance(sentence, (str, bytes)):
        raise ValueError(f"{name}: expected a list of tokens, got the {type(sentence).__name__} {shown(sentence)}; "
                         "split it first (.split() for words, list() for letters)")
    if not isinstance(sentence, Collection) or not getattr(sentence, "ndim", 1):  # an array may be a single number
        raise ValueError(f"{name}: expected a list of tokens, got {type(sentence).__name__}")
    return tuple(sentence)


def groups_of(iterator: Iterable[_Item], group_size: int) -> Iterator[list[_Item]]:
    """Lists of `group_size` items; the last list has the remaining items."""
    items = iter(iterator)
    return iter(lambda: list(itertools.islice(items, group_size)), [])


def number_tokens(batch: Iterable[Sequence[str]]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Unique tokens in order of first use, the number of each token in running order, and sentence lengths.

    Returns (unique list, int32 [tokens], int64 [sentences]).
    """
    numbers: dict[str, int] = {}
    running: list[int] = []
    lengths: list[int] = []
    for sentence in batch:
        start = len(running)
        try:
            running.extend(numbers.setdefault(token, len(numbers)) for token in sentence)
        except TypeError as error:
            raise not_a_string(error) from error
        lengths.append(len(running) - start)
    return list(numbers), np.array(running, dtype=np.int32), np.array(lengths, dtype=np.int64)


def not_a_string(error: TypeError) -> ValueError:
    """The error for an unhashable token, such as a list: the batch then has one level of lists too many."""
    unhashable = re.search("unhashable type: '(.*?)'", str(error))
    return ValueError(f"token: expected a string, got {unhashable[1] if unhashable else error}")


def _at_least_one(sentences: Iterable[Sequence[str]], name: str = "sentences") -> list[tuple[str, ...]]:
    listed = check_batch(sentences, name)
    if not listed:
        raise ValueError(f"{name}: expected at least one sentence, got none")
    return listed


def _pad(batch, max_characters_per_token: int) -> np.ndarray:
    unique, running, lengths = number_tokens(batch)
    encoded = characters.to_model_ids(characters.encode_tokens(unique, max_characters_per_token))
    ids = np.zeros((len(lengths), int(lengths.max(initial=0)), max_characters_per_token), dtype=np.int64)
    present = np.arange(ids.shape[1]) < lengths[:, None]  # [B, T]
    ids[present] = encoded[running]
    return ids


class Batcher:
    """Sentences to character ids with `<S>` and `</S>` around each, as bilm-tf's `Batcher` gives them."""

    def __init__(self, lm_vocab_file: str | os.PathLike, max_token_length: int):
        self._lm_vocab = UnicodeCharsVocabulary(lm_vocab_file, max_token_length)
        self._max_token_length = max_token_length

    @outside_graphs
    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 [sentences, longest + 2, max_token_length]; ids 1 to 261, zero past a sentence's end."""
        bounded = [(BOUNDARIES[0], *sentence, BOUNDARIES[1]) for sentence in _at_least_one(sentences)]
        return _pad(bounded, self._max_token_length)


class TokenBatcher:
    """Sentences to word ids + 1 with `<S>` and `</S>` around each, as bilm-tf's `TokenBatcher` gives them.

    A vocabulary without `<S>` or `</S>` is refused, and so is a word outside a vocabulary that has no `<UNK>`:
    for both, bilm-tf writes id 0, which masks the position and silently shortens the sentence.
    """

    def __init__(self, lm_vocab_file: str | os.PathLike):
        self._lm_vocab = Vocabulary(lm_vocab_file)
        self._lm_vocab.require(*BOUNDARIES)

    @outside_graphs
    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 [sentences, longest + 2]; ids 1 to size, zero past a sentence's end."""
        sentences = _at_least_one(sentences)
        ids = np.zeros((len(sentences), max(map(len, sentences)) + 2), dtype=np.int64)
        for row, sentence in zip(ids, sentences):
            words = self._lm_vocab.encode(sentence, split=False)
            unknown = [] if self._lm_vocab.unk >= 0 else [word for word in sentence if word not in self._lm_vocab]
            if unknown:
                raise ValueError(f"sentences: expected words of the vocabulary, which has no {UNKNOWN_TOKEN} to "
                                 f"replace other words, got {unknown[0]!r}")
            row[: len(sentence) + 2] = words + 1
        return ids
