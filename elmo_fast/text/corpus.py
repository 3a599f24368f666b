"""Files of a corpus, one tokenized sentence per line: parallel counts, the vocabulary, sentences in any order."""

import concurrent.futures
import functools
import hashlib
import itertools
import multiprocessing
import operator
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmo_fast.environment import cores
from elmo_fast.errors import ConfigurationError, undecodable
from elmo_fast.files import stops
from elmo_fast.files.atomic import DeferredErrorFile, atomic_path, check_target, write_part
from elmo_fast.files.compressed import STDIN, split_suffix
from elmo_fast.text.characters import BEGIN_SENTENCE_TOKEN, END_SENTENCE_TOKEN
from elmo_fast.text.readers import find_files, format_of, open_texts
from elmo_fast.text.vocabulary import SKIPPED_LINE, SPECIAL_WORDS

_CHUNK = 32 << 20  # bytes that a process counts at a time
_NEWLINE = ord("\n")
_GROUP_SENTENCES = 1 << 22  # sentences shuffled together; 16 bytes of memory per sentence
_GROUP_FILES = 256

Inputs = Sequence[str | os.PathLike] | str | os.PathLike
Location = tuple[int, int, int]  # epoch, group of shards and sentence, numbered in that epoch's order


class Shard(NamedTuple):
    """A file: its size in bytes, its numbers of lines and whitespace-separated tokens, and a hash of its text."""

    path: str
    size: int
    sentences: int
    tokens: int
    digest: str

    @property
    def predictions(self) -> int:
        """Number of tokens that a model predicts in one direction, the ends of sentences included."""
        return self.tokens + self.sentences


def is_plain(path: str, format: str | None = None, field: str | None = None, tokenizer: Any = "whitespace") -> bool:
    """Whether a file has tokenized sentences as they are read at random: plain text, split at whitespace.

    The arguments are those of `open_texts`.
    """
    return (tokenizer == "whitespace" and field is None and (format or format_of(path)) == "text"
            and not split_suffix(path)[1] and os.path.isfile(path))


def tokenized_lines(path: str, what: str, **reading) -> Iterator[str]:
    """Lines of tokens separated by spaces, of a file that `open_texts` reads with the arguments `reading`.

    `ValueError` for tokens that contain white space.
    """
    with open_texts([path], allow_blank=True, **reading) as texts:
        for number, text in enumerate(stops.checked(texts), start=1):
            line = " ".join(text.tokens)
            if len(line.split()) != len(text.tokens):
                raise ConfigurationError(f"{what}: expected tokens without white space, which a vocabulary cannot "
                                         f"hold, got {text.tokens!s:.80} in text {number} of {path}")
            yield line


def plain_files(inputs: Inputs, what: str, folder: str | os.PathLike | None, **reading) -> list[str]:
    """Sorted files of paths and globs, without repetition; those that are not plain are copied to `folder` as plain
    text, split by the arguments `reading` of `open_texts`.
    """
    paths = []
    for number, path in enumerate(sorted(set(find_files(inputs, what)))):
        if folder is None or is_plain(path, **reading):
            paths.append(path)
            continue
        copy = Path(folder, what, f"{number:06}", os.path.basename(path))
        copy.parent.mkdir(parents=True)
        paths.append(os.fspath(copy))
        with DeferredErrorFile(copy, copy) as disk:
            for line in tokenized_lines(path, what, **reading):
                disk.write(f"{line}\n".encode())
                disk.check()
    return paths


def read_shards(inputs: Inputs, name: str, folder: str | os.PathLike | None = None, **reading) -> list[Shard]:
    """Count every file of `plain_files`. `ValueError` for an empty file and for bytes that are not UTF-8."""
    shards = []
    paths = plain_files(inputs, name, folder, **reading)
    for path, chunks in itertools.groupby(map_chunks(_count, paths), operator.itemgetter(0)):
        lines, tokens, digests = zip(*(result for _, result in chunks))
        digest = hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()
        shards.append(Shard(path, os.path.getsize(path), sum(lines), sum(tokens), digest))
    for shard in shards:
        if not shard.tokens:
            raise ValueError(f"{name}: expected sentences in every file, found no token in {shard.path}")
    return shards


def _count(text: str) -> tuple[int, int, bytes]:
    """Lines, tokens, and a hash of the text."""
    lines = text.count("\n") + bool(text and not text.endswith("\n"))
    return lines, len(text.split()), hashlib.blake2b(text.encode(), digest_size=16).digest()


def make_vocabulary(inputs: Inputs, output: str | os.PathLike, *, min_count: int = 1,
                    max_size: int | None = None, processes: int | None = None, **reading) -> tuple[int, int]:
    """Write the words of the texts that `inputs` (paths and globs) match; returns words written and tokens counted.

    `reading` are `format`, `field` and `tokenizer` of `open_texts`; plain text is read by `processes` in parallel.

    `<S>`, `</S>` and `<UNK>` come first, then words by descending count, equal counts in the order of code points.
    Words rarer than `min_count`, and beyond `max_size` with the first three, are left out: `ValueError` if all are.
    """
    check_target(output, "output")
    if max_size is not None and max_size <= len(SPECIAL_WORDS):
        raise ValueError(f"max_size: expected more than the {len(SPECIAL_WORDS)} special words, got {max_size}")
    paths = sorted(set(find_files(inputs, "inputs")))
    if os.path.exists(output) and any(os.path.samefile(output, path) for path in paths if path != STDIN):
        raise ConfigurationError(f"output: expected a file other than the inputs, got {os.fspath(output)}")
    with atomic_path(output) as part:
        counts: Counter[str] = Counter()
        others = [path for path in paths if not is_plain(path, **reading)]
        for _, words in map_chunks(_count_words, sorted(set(paths).difference(others)), processes):
            counts.update(words)
        for path in others:
            for line in tokenized_lines(path, "inputs", **reading):
                counts.update(line.split())
        by_count = sorted((-counts[word], word) for word in counts.keys() - {*SPECIAL_WORDS, SKIPPED_LINE}
                          if counts[word] >= min_count)
        if not by_count:
            raise ValueError(f"inputs: expected words, found none in {', '.join(paths):.300} (min_count {min_count})")
        words = [*SPECIAL_WORDS, *(word for _, word in by_count)][:max_size]
        write_part(part, output, "".join(f"{word}\n" for word in words).encode())
        return len(words), counts.total()


def _count_words(text: str) -> Counter:
    return Counter(text.split())


def map_chunks(function: Callable, paths: Iterable[str], processes: int | None = None) -> Iterator[tuple[str, object]]:
    """Yield (path, `function(text)`) for every chunk of complete lines of the files, in order.

    `processes` work in parallel, at most one per chunk; by default one per core, or a single one for a small corpus.
    """
    sizes = {path: os.path.getsize(path) for path in paths}
    chunks = [(path, first, _CHUNK) for path, size in sizes.items() for first in range(0, max(1, size), _CHUNK)]
    count = functools.partial(_on_chunk, function)
    workers = min(processes or (1 if sum(sizes.values()) <= _CHUNK else cores()), len(chunks))
    if workers <= 1:
        yield from stops.checked(map(count, chunks))
        return
    with concurrent.futures.ProcessPoolExecutor(workers, None, _follow_parent) as pool:
        try:
            yield from stops.checked(pool.map(count, chunks))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, and exit when the parent was killed: this process would wait for work forever.

    On Windows the parent's process id stays the same after the parent has ended; on other systems other forks may hold
    the pipe that `is_alive` reads. So both are checked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, number = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:
        while parent.is_alive() and os.getppid() == number:
            parent.join(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_chunk(function: Callable, chunk: tuple[str, int, int]) -> tuple[str, object]:
    path, first, size = chunk
    with open(path, "rb") as file:
        if first:
            file.seek(first - 1)
            file.readline()  # a line that begins in the previous chunk belongs to that chunk
        start = file.tell()
        text = file.read(max(0, first + size - start))
        text += file.readline() if text and not text.endswith(b"\n") else b""
    return path, function(_decode(text, path, start))


def _decode(text: bytes, path: str, start: int) -> str:
    """Decode the bytes at `start` of a file, without its byte order mark; a `ValueError` names the line."""
    try:
        decoded = text.decode("utf-8")
        return decoded if start else decoded.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        with open(path, "rb") as file:
            line = file.read(start + error.start).count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: expected UTF-8 text, got {undecodable(error)} ({error.reason} at byte "
                         f"{start + error.start})") from None


class Lines:
    """The `expected` lines of a file by number. Memory holds 8 bytes per line, the text stays on the disk."""

    def __init__(self, path: str, expected: int):
        self.path = path
        self._text = np.asarray(np.memmap(path, np.uint8, "r"))
        ends = [first + 1 + np.flatnonzero(self._text[first : first + _CHUNK] == _NEWLINE)
                for first in range(0, len(self._text), _CHUNK)]
        self._starts = np.concatenate([[0], *ends])
        if self._text[-1] != _NEWLINE:
            self._starts = np.append(self._starts, len(self._text))
        if len(self) != expected:
            raise ValueError(f"{path}: expected the {expected} lines it had when the run began, found {len(self)}")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def tokens(self, number: int) -> list[str]:
        first, last = self._starts[number : number + 2].tolist()
        return _decode(self._text[first:last].tobytes(), self.path, first).split()


@dataclass(frozen=True)
class Order:
    """The order of sentences. Without a seed: file after file, line after line, once.

    With a seed, shards are shuffled and gathered into groups, and all sentences of a group are shuffled together: a
    model that reads book after book forgets earlier books. Stream number `stream` takes every `streams`-th sentence of
    that order, starting with its own number; forward and reverse text are shuffled independently. With `reverse` a
    sentence is read from its end.
    """

    seed: int | None = None
    reverse: bool = False
    stream: int = 0
    streams: int = 1

    def groups(self, epoch: int, shards: Sequence[Shard]) -> list[list[int]]:
        """Shard numbers of every group, in the order of an epoch."""
        if self.seed is None:
            return [[number] for number in range(len(shards))]
        groups, capacity = [], 0
        for number in self._generator(epoch).permutation(len(shards)).tolist():
            if not groups or shards[number].sentences > capacity or len(groups[-1]) == _GROUP_FILES:
                groups.append([])
                capacity = _GROUP_SENTENCES
            groups[-1].append(number)
            capacity -= shards[number].sentences
        return groups

    def lengths(self, epoch: int, shards: Sequence[Shard]) -> list[int]:
        """This stream's sentences in every group of an epoch."""
        counts = (sum(shards[number].sentences for number in group) for group in self.groups(epoch, shards))
        return [len(range(self.stream, count, self.streams)) for count in counts]

    def sentences(self, epoch: int, group: int, count: int) -> np.ndarray:
        """Numbers of this stream's sentences of a group that has `count`, in the order of an epoch."""
        order = np.arange(count) if self.seed is None else self._generator(epoch, group + 1).permutation(count)
        return order[self.stream :: self.streams]

    def _generator(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(self.reverse), *numbers])


class Sentences(Iterator):
    """Sentences in an order, starting at any location: lists of tokens with `<S>` and `</S>` around them.

    Holds the line indexes of a single group of shards at a time.
    """

    def __init__(self, shards: Sequence[Shard], order: Order, start: Location = (0, 0, 0)):
        sentences = sum(shard.sentences for shard in shards)
        if sentences < order.streams:
            raise ValueError(f"train: expected at least {order.streams} sentences, one per stream, "
                             f"got {sentences} sentences")
        self._order = order
        self.location = start  # of the next sentence
        self._group = functools.lru_cache(maxsize=1)(functools.partial(_Group, shards, order))

    def __next__(self) -> tuple[Location, list[str]]:
        """The next sentence and its location; `StopIteration` after the last sentence of an order without a seed."""
        epoch, group, sentence = self.location
        first = epoch
        while epoch <= first + 1:
            if epoch and self._order.seed is None:
                raise StopIteration
            current = self._group(epoch, group)
            if sentence < len(current.numbers):
                self.location = epoch, group, sentence + 1
                return (epoch, group, sentence), self.at((epoch, group, sentence))
            group, sentence = group + 1, 0
            if group == current.groups:
                epoch, group = epoch + 1, 0
        raise ValueError(f"train: expected sentences for stream {self._order.stream} of {self._order.streams} in an "
                         "epoch, got none: groups of files have fewer sentences than streams")

    def at(self, location: Location) -> list[str]:
        tokens = self._group(*location[:2]).tokens(location[2])
        sentence = [BEGIN_SENTENCE_TOKEN, *tokens, END_SENTENCE_TOKEN]
        return sentence[::-1] if self._order.reverse else sentence


class _Group:
    """Shards that are shuffled together: their lines, and `numbers`, this stream's lines in order."""

    def __init__(self, shards: Sequence[Shard], order: Order, epoch: int, group: int):
        groups = order.groups(epoch, shards)
        self.groups = len(groups)
        self._lines = [Lines(shards[number].path, shards[number].sentences) for number in groups[group]]
        self._firsts = np.cumsum([0, *map(len, self._lines)])  # the number of each shard's first line, and of all lines
        self.numbers = order.sentences(epoch, group, int(self._firsts[-1]))

    def tokens(self, sentence: int) -> list[str]:
        number = int(self.numbers[sentence])
        shard = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return self._lines[shard].tokens(number - int(self._firsts[shard]))
