"""Batches of tokenized sentences: checked and copied, numbered, padded."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from elmo_fast.arguments import shown
from elmo_fast.text import characters

_Item = TypeVar("_Item")
_MOST_WORDS = 1 << 24  # of a sentence, which is copied: a generator may never end
BOUNDARIES = (characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN)


def check_batch(batch: Iterable[Sequence[str]], name: str = "batch") -> list[tuple[str, ...]]:
    """Copies of the sentences of `batch`, also those of a generator; `ValueError` unless all are lists of tokens."""
    check_iterable(batch, name)
    return [check_sentence(sentence, f"{name}[{index}]") for index, sentence in enumerate(batch)]


def check_iterable(batch: Iterable, name: str = "batch") -> None:
    """Raise `ValueError` for anything but a collection or generator of sentences; strings and tables are refused."""
    if isinstance(batch, (str, bytes)) or not _is_series(batch):
        raise ValueError(f"{name}: expected a list of tokenized sentences, got {type(batch).__name__}")


def check_sentence(sentence: Iterable[str], name: str = "sentence", expected: str = "a list of tokens"
                   ) -> tuple[str, ...]:
    """A copy of the sentence, whose list the caller may fill anew: a list, array, series or generator of tokens.

    `ValueError` for anything else, with what was `expected`; for a string the error says how to split it.
    """
    if isinstance(sentence, (str, bytes)):
        raise ValueError(f"{name}: expected a list of tokens, got the {type(sentence).__name__} {shown(sentence)}; "
                         "split it first (.split() for words, list() for letters)")
    if not _is_series(sentence):
        raise ValueError(f"{name}: expected {expected}, got {type(sentence).__name__}")
    tokens = tuple(itertools.islice(sentence, _MOST_WORDS + 1))
    if len(tokens) > _MOST_WORDS:
        raise ValueError(f"{name}: expected at most {_MOST_WORDS:,} tokens, got more")
    return tokens


def _is_series(values: object) -> bool:
    """Whether values are in order. An array may be a single number; of mappings and data frames only names are read."""
    return (isinstance(values, Iterable) and not isinstance(values, Mapping) and not hasattr(values, "columns")
            and getattr(values, "ndim", 1) > 0)


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


def at_least_one(sentences: Iterable[Sequence[str]], name: str = "sentences") -> list[tuple[str, ...]]:
    listed = check_batch(sentences, name)
    if not listed:
        raise ValueError(f"{name}: expected at least one sentence, got none")
    return listed


def padded(batch, max_characters_per_token: int) -> np.ndarray:
    """Character ids of tokenized sentences, 0 past their ends: int64 [sentences, T, max_characters_per_token]."""
    unique, running, lengths = number_tokens(batch)
    encoded = characters.to_model_ids(characters.encode_tokens(unique, max_characters_per_token))
    ids = np.zeros((len(lengths), int(lengths.max(initial=0)), max_characters_per_token), dtype=np.int64)
    present = np.arange(ids.shape[1]) < lengths[:, None]  # [B, T]
    ids[present] = encoded[running]
    return ids
