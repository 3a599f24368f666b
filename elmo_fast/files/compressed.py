"""Read text files, plain or compressed (`.gz`, `.bz2`, `.xz`, `.zst`), and stdin."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import IO, Any, BinaryIO

from elmo_fast.environment import extra
from elmo_fast.files import stops

COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}  # suffix -> name
STDIN = "-"
MOST_UNPACKED, MOST_EXPANSION = 32 << 20, 20  # bytes of a list of words, or times those of its file
MOST_LINE = 1 << 28  # characters of a line, all of which is read into memory


def split_suffix(name: str) -> tuple[str, str]:
    """A path without its compression suffix, and this suffix in lower case or the empty string."""
    stem, suffix = os.path.splitext(name)
    return (stem, suffix.lower()) if suffix.lower() in COMPRESSIONS else (name, "")


class _Bounded(io.RawIOBase):
    """At most `most` bytes of a file; a longer file raises `ValueError` with `message`."""

    def __init__(self, file: Any, most: int, message: str):
        self._file, self._left, self._message = file, most, message

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        piece = self._file.read(len(buffer))
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError(self._message)
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_bounded(name: str, what: str) -> BinaryIO:
    """Open a file that will be read to its end, decompressed where its name ends in `.gz`.

    `ValueError` where it unpacks to an implausible size for a list of words.
    """
    if not name.endswith(".gz"):
        return open(name, "rb")
    most = max(MOST_UNPACKED, MOST_EXPANSION * os.path.getsize(name))
    return io.BufferedReader(_Bounded(gzip.open(name), most, f"{what} {name}: expected at most {most:,} bytes when "
                                      f"unpacked, {MOST_EXPANSION} times those of the file, found more"), 1 << 17)


def check_line(line: str, what: str, name: str) -> str:
    """A line read by `readline(MOST_LINE)`; `ValueError` if the line is longer: in compressed data it may never end."""
    if len(line) >= MOST_LINE and not line.endswith("\n"):
        raise ValueError(f"{what}: expected lines of at most {MOST_LINE:,} characters, got a longer one in {name}")
    return line


@contextlib.contextmanager
def open_text(name: str, what: str = "input file") -> Iterator[IO[str]]:
    """Open a file's UTF-8 text, decompressed if its suffix names a compression; `-` is stdin, which stays open.

    A byte order mark is skipped.

    `ValueError` for damaged or truncated compressed data, in the body too; every `OSError` has the file's name.
    """
    kind = COMPRESSIONS.get(split_suffix(name)[1])
    try:
        with stops.interruptible(_open)(name) as file:
            yield file
    except _damage(kind) as error:
        if isinstance(error, OSError) and (error.errno is not None or not kind):
            error.filename = error.filename or name
            raise
        raise ValueError(f"{what}: expected a complete {kind} file, got {name} ({error})") from error


def _open(name: str) -> IO[str]:
    if name == STDIN:
        return open(sys.stdin.fileno(), encoding="utf-8-sig", closefd=False)
    suffix = split_suffix(name)[1]
    if not suffix:
        return open(name, encoding="utf-8-sig")
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}
    return io.TextIOWrapper(openers[suffix](name), encoding="utf-8-sig")


def find_zstd() -> ModuleType:
    """Python's module of Zstandard, a package before 3.14; `ImportError` that names its extra where it is absent."""
    with extra("zstd"):
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    return zstd


def _open_zstd(name: str) -> BinaryIO:
    zstd = find_zstd()
    # `zstd --long=31` writes the largest window, 2 GiB; memory use is the size of the file's window.
    return zstd.open(name, options={zstd.DecompressionParameter.window_log_max: 31})


def _damage(kind: str | None) -> tuple[type[Exception], ...]:
    """The errors of damaged or truncated data."""
    errors = EOFError, zlib.error, lzma.LZMAError, OSError
    return (*errors, find_zstd().ZstdError) if kind == "Zstandard" else errors
