"""Files of a corpus: one tokenized sentence a line, read line by line in any order, and counted in parallel."""

import concurrent.futures
import glob
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_PIECE = 32 << 20  # bytes that one process counts at a time
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class Shard:
    """One file: its size in bytes, lines and whitespace-separated tokens."""

    path: str
    size: int
    sentences: int
    tokens: int


def find_files(patterns: Sequence[str] | str, name: str) -> list[str]:
    """Files that the paths and globs name, sorted, each once. `FileNotFoundError` where one names nothing."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    found: set[str] = set()
    for pattern in patterns:
        here = [pattern] if os.path.isfile(pattern) else [each for each in glob.glob(pattern, recursive=True)
                                                          if os.path.isfile(each)]
        if not here:
            raise FileNotFoundError(f"{name}: expected files of text, found none at {pattern}")
        found.update(here)
    if not found:
        raise FileNotFoundError(f"{name}: expected at least one file of text, got none")
    return sorted(found)


def read_shards(patterns: Sequence[str] | str, name: str, processes: int | None = None) -> list[Shard]:
    """Count every file that `patterns` name. `ValueError` for an empty one and for bytes that are not UTF-8."""
    paths = find_files(patterns, name)
    totals = {path: [0, 0] for path in paths}
    for path, (sentences, tokens) in over_pieces(_count, paths, processes):
        totals[path][0] += sentences
        totals[path][1] += tokens
    for path, (_, tokens) in totals.items():
        if not tokens:
            raise ValueError(f"{name}: expected sentences in every file, found no token in {path}")
    return [Shard(path, os.path.getsize(path), *totals[path]) for path in paths]


def over_pieces(function: Callable, paths: Iterable[str], processes: int | None = None) -> Iterator[tuple[str, object]]:
    """(path, `function(text)`) for pieces of whole lines that together are the files, in the files' order.

    Texts of more than one piece are counted by as many processes as there are cores, or by `processes`.
    """
    sizes = {path: os.path.getsize(path) for path in paths}
    pieces = [(path, first, _PIECE) for path, size in sizes.items() for first in range(0, max(1, size), _PIECE)]
    wanted = processes or (1 if sum(sizes.values()) <= _PIECE else _cores())
    if min(wanted, len(pieces)) == 1:
        yield from ((piece[0], _on_piece(function, piece)) for piece in pieces)
        return
    with concurrent.futures.ProcessPoolExecutor(min(wanted, len(pieces)), initializer=_end_with,
                                                initargs=(os.getpid(),)) as pool:
        results = pool.map(_on_piece, [function] * len(pieces), pieces)
        yield from ((piece[0], result) for piece, result in zip(pieces, results))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with(parent: int) -> None:
    """Let this process end when its parent was killed: a pool's processes would wait for work for ever."""
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_piece(function: Callable, piece: tuple[str, int, int]):
    path, first, size = piece
    with open(path, "rb") as file:
        if first:
            file.seek(first - 1)
            file.readline()  # the line that began in the piece before belongs to it
        start = file.tell()
        text = file.read(max(0, first + size - start))
        text += file.readline() if text and not text.endswith(b"\n") else b""
    return function(_decoded(text, path, start))


def _decoded(text: bytes, path: str, start: int = 0) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        with open(path, "rb") as file:
            line = file.read(start + error.start).count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: expected UTF-8 text, got undecodable bytes ({error.reason} at byte "
                         f"{start + error.start})") from None


def _count(text: str) -> tuple[int, int]:
    return text.count("\n") + bool(text and not text.endswith("\n")), len(text.split())


class Lines:
    """The lines of one file by number; in memory are 8 bytes a line, the text stays on the disk."""

    def __init__(self, path: str):
        self.path = path
        with open(path, "rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = [np.flatnonzero(np.frombuffer(self._text, np.uint8, min(_PIECE, len(self._text) - first), first)
                               == _NEWLINE) + first for first in range(0, len(self._text), _PIECE)]
        self._starts = np.concatenate([[0], *(end + 1 for end in ends), [len(self._text)]])
        if self._text[-1] == _NEWLINE:
            self._starts = self._starts[:-1]

    def __len__(self) -> int:
        return len(self._starts) - 1

    def tokens(self, number: int) -> list[str]:
        """Tokens of line `number`."""
        first, last = self._starts[number : number + 2].tolist()
        return _decoded(self._text[first:last], self.path, first).split()
