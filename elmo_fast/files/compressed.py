"""Read text files, plain or compressed (`.gz`, `.bz2`, `.xz`, `.zst`), and stdin."""

import bz2
import codecs
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
from elmo_fast.errors import undecodable
from elmo_fast.files import stops

COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}  # suffix -> name
STDIN = "-"
MOST_UNPACKED, MOST_EXPANSION = 32 << 20, 20  # bytes of a list of words, or times those of its file
MOST_LINE = 1 << 28  # characters of a line, all of which is read into memory


def split_suffix(name: str) -> tuple[str, str]:
    """A path without its compression suffix, and this suffix in lower case or the empty string."""
    stem, suffix = os.path.splitext(name)
    return (stem, suffix.lower()) if suffix.lower() in COMPRESSIONS else (name, "")


def read_words(name: str, what: str) -> bytes:
    """The content of a list of words, decompressed by its suffix, without a byte order mark.

    `ValueError` for damage, and where it unpacks to an implausible size for a list of words.
    """
    most = max(MOST_UNPACKED, MOST_EXPANSION * os.path.getsize(name))
    with _complete(name, what), _OPENERS.get(split_suffix(name)[1], open)(name, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{what} {name}: expected at most {most:,} bytes when unpacked, {MOST_EXPANSION} times those "
                         "of the file, found more")
    return content.removeprefix(codecs.BOM_UTF8)


def check_line(line: str, what: str, name: str) -> str:
    """A line read by `readline(MOST_LINE)`; `ValueError` if the line is longer: in compressed data it may never end."""
    if len(line) >= MOST_LINE and not line.endswith("\n"):
        raise ValueError(f"{what}: expected lines of at most {MOST_LINE:,} characters, got a longer one in {name}")
    return line


@contextlib.contextmanager
def open_text(name: str, what: str = "input file") -> Iterator[IO[str]]:
    """Open a file's UTF-8 text, decompressed if its suffix names a compression; `-` is stdin, which stays open.

    A byte order mark is skipped.

    `ValueError` for damaged or truncated compressed data and for other encodings, in the body too; every `OSError` has
    the file's name.
    """
    with _complete(name, what), stops.interruptible(_open)(name) as file:
        yield file


@contextlib.contextmanager
def _complete(name: str, what: str) -> Iterator[None]:
    """Name the file in the errors of the body."""
    kind = COMPRESSIONS.get(split_suffix(name)[1])
    damage = EOFError, zlib.error, lzma.LZMAError, OSError, *([find_zstd().ZstdError] if kind == "Zstandard" else [])
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}: expected UTF-8 text, got {undecodable(error)} in {name} ({error})") from error
    except damage as error:
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
    return io.TextIOWrapper(_OPENERS[suffix](name), encoding="utf-8-sig")


def find_zstd() -> ModuleType:
    """Python's module of Zstandard, a package before 3.14; `ImportError` that names its extra where it is absent."""
    with extra("zstd"):
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    return zstd


def _open_zstd(name: str, mode: str = "rb") -> BinaryIO:
    zstd = find_zstd()
    # `zstd --long=31` writes the largest window, 2 GiB; memory use is the size of the file's window.
    return zstd.open(name, mode, options={zstd.DecompressionParameter.window_log_max: 31})


_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}
