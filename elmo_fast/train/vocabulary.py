"""Counts the words of a text and writes a vocabulary file."""

import os
from collections import Counter
from collections.abc import Sequence

from elmo_fast.model.atomic_file import check_target, atomic_path
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN
from elmo_fast.train.shards import find_files, over_pieces

SPECIAL_WORDS = (BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN, UNKNOWN_TOKEN)
_SKIPPED_BY_READERS = "!!!MAXTERMID"


def make_vocabulary(inputs: Sequence[str] | str, output: str | os.PathLike, *, min_count: int = 1,
                    max_size: int | None = None, processes: int | None = None) -> tuple[int, int]:
    """Write the words of the texts that `inputs` (paths and globs) name; returns words written and tokens counted.

    `<S>`, `</S>` and `<UNK>` come first, then words by descending count, equal counts in the order of code points.
    Words counted less than `min_count` times are left out, and words beyond `max_size`, the three included.
    """
    check_target(output, "output")
    if max_size is not None and max_size <= len(SPECIAL_WORDS):
        raise ValueError(f"max_size: expected more than the {len(SPECIAL_WORDS)} special words, got {max_size}")
    counts: Counter[str] = Counter()
    for _, counted in over_pieces(count_words, find_files(inputs, "inputs"), processes):
        counts.update(counted)
    total = counts.total()
    if not total:
        raise ValueError("inputs: expected words, found none")
    words = [*SPECIAL_WORDS, *_by_count(counts, min_count)][:max_size]
    with atomic_path(output) as part:
        part.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return len(words), total


def count_words(text: str) -> Counter:
    """How often each whitespace-separated token occurs."""
    return Counter(text.split())


def _by_count(counts: Counter, min_count: int) -> list[str]:
    for word in (*SPECIAL_WORDS, _SKIPPED_BY_READERS):
        counts.pop(word, None)
    kept = ((-count, word) for word, count in counts.items() if count >= min_count)
    return [word for _, word in sorted(kept)]
