"""Files of a corpus, a tokenized sentence a line: read in any order, counted in parallel, their vocabulary."""

import concurrent.futures
import glob
import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from elmo_fast.model.atomic_file import atomic_path, check_target
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN

SPECIAL_WORDS = (BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN, UNKNOWN_TOKEN)
_SKIPPED_BY_READERS = "!!!MAXTERMID"
_CHUNK = 32 << 20  # bytes that a process counts at a time
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class Shard:
    """One file: its size in bytes, lines and whitespace-separated tokens."""

    path: str
    size: int
    sentences: int
    tokens: int


def find_files(patterns: Sequence[str] | str, name: str) -> list[str]:
    """Sorted files that paths and globs match, without repetition. `FileNotFoundError` without a match."""
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        paths = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
        matches = list(filter(os.path.isfile, paths))
        if not matches:
            raise FileNotFoundError(f"{name}: expected files of text, found none at {pattern}")
        found.update(matches)
    if not found:
        raise FileNotFoundError(f"{name}: expected at least one file of text, got none")
    return sorted(found)


def read_shards(patterns: Sequence[str] | str, name: str, processes: int | None = None) -> list[Shard]:
    """Count every file that `patterns` match. `ValueError` for an empty file and for bytes that are not UTF-8."""
    paths = find_files(patterns, name)
    totals = {path: [0, 0] for path in paths}
    for path, (sentences, tokens) in map_chunks(_count, paths, processes):
        totals[path][0] += sentences
        totals[path][1] += tokens
    for path, (_, tokens) in totals.items():
        if not tokens:
            raise ValueError(f"{name}: expected sentences in every file, found no token in {path}")
    return [Shard(path, os.path.getsize(path), *totals[path]) for path in paths]


def _count(text: str) -> tuple[int, int]:
    return text.count("\n") + bool(text and not text.endswith("\n")), len(text.split())


def make_vocabulary(inputs: Sequence[str] | str, output: str | os.PathLike, *, min_count: int = 1,
                    max_size: int | None = None, processes: int | None = None) -> tuple[int, int]:
    """Write the words of the texts that `inputs` (paths and globs) match; returns words written and tokens counted.

    `<S>`, `</S>` and `<UNK>` come first, then words by descending count, equal counts in the order of code points.
    Words counted less than `min_count` times are left out, and words beyond `max_size`, which includes the first three.
    """
    check_target(output, "output")
    if max_size is not None and max_size <= len(SPECIAL_WORDS):
        raise ValueError(f"max_size: expected more than the {len(SPECIAL_WORDS)} special words, got {max_size}")
    counts: Counter[str] = Counter()
    for _, counted in map_chunks(_count_words, find_files(inputs, "inputs"), processes):
        counts.update(counted)
    total = counts.total()
    if not total:
        raise ValueError("inputs: expected words, found none")
    for word in (*SPECIAL_WORDS, _SKIPPED_BY_READERS):
        counts.pop(word, None)
    by_count = sorted((-count, word) for word, count in counts.items() if count >= min_count)
    words = [*SPECIAL_WORDS, *(word for _, word in by_count)][:max_size]
    with atomic_path(output) as partial:
        partial.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return len(words), total


def _count_words(text: str) -> Counter:
    return Counter(text.split())


# ---- parallel counting ---------------------------------------------------------------------


def map_chunks(function: Callable, paths: Iterable[str], processes: int | None = None) -> Iterator[tuple[str, object]]:
    """(path, `function(text)`) for chunks of complete lines that together are the files, in the files' order.

    More than one chunk is counted by as many processes as there are cores, or by `processes`.
    """
    sizes = {path: os.path.getsize(path) for path in paths}
    chunks = [(path, first, _CHUNK) for path, size in sizes.items() for first in range(0, max(1, size), _CHUNK)]
    wanted = processes or (1 if sum(sizes.values()) <= _CHUNK else _cores())
    if min(wanted, len(chunks)) == 1:
        yield from ((chunk[0], _on_chunk(function, chunk)) for chunk in chunks)
        return
    with concurrent.futures.ProcessPoolExecutor(min(wanted, len(chunks)), initializer=_exit_with_parent,
                                                initargs=(os.getpid(),)) as pool:
        results = pool.map(_on_chunk, [function] * len(chunks), chunks)
        yield from ((chunk[0], result) for chunk, result in zip(chunks, results))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exit_with_parent(parent: int) -> None:
    """End this process when its parent was killed: a pool's processes would wait for work for ever."""
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_chunk(function: Callable, chunk: tuple[str, int, int]):
    path, first, size = chunk
    with open(path, "rb") as file:
        if first:
            file.seek(first - 1)
            file.readline()  # the line that began in the chunk before belongs to it
        start = file.tell()
        text = file.read(max(0, first + size - start))
        text += file.readline() if text and not text.endswith(b"\n") else b""
    return function(_decode(text, path, start))


def _decode(text: bytes, path: str, start: int = 0) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        with open(path, "rb") as file:
            line = file.read(start + error.start).count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: expected UTF-8 text, got undecodable bytes ({error.reason} at byte "
                         f"{start + error.start})") from None


class Lines:
    """The lines of a file by number. Memory holds 8 bytes a line, the text stays on the disk."""

    def __init__(self, path: str):
        self.path = path
        with open(path, "rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = [np.flatnonzero(np.frombuffer(self._text, np.uint8, min(_CHUNK, len(self._text) - first), first)
                               == _NEWLINE) + first for first in range(0, len(self._text), _CHUNK)]
        self._starts = np.concatenate([[0], *(end + 1 for end in ends), [len(self._text)]])
        if self._text[-1] == _NEWLINE:
            self._starts = self._starts[:-1]

    def __len__(self) -> int:
        return len(self._starts) - 1

    def tokens(self, number: int) -> list[str]:
        """Tokens of line `number`."""
        first, last = self._starts[number : number + 2].tolist()
        return _decode(self._text[first:last], self.path, first).split()
