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
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
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
    """The module zstandard; `ImportError` that names its extra where the package is absent."""
    with extra("zstd"):
        import zstandard
    return zstandard


def _open_zstd(name: str) -> io.BufferedReader:
    zstandard = find_zstd()
    return io.BufferedReader(_ZstdFile(open(name, "rb"), zstandard), 1 << 17)


class _ZstdFile(io.RawIOBase):
    """The decompressed frames of a file. zstandard's reader ends without an error where a frame is truncated."""

    _BLOCK = 2048  # bytes read at a time: at most 64 MiB of text, since 4 bytes can expand to 128 KiB

    def __init__(self, file: BinaryIO, zstandard: ModuleType):
        self._file, self._error = file, zstandard.ZstdError
        # `zstd --long=31` writes the largest window, 2 GiB; memory use is the size of the file's window.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame: Any = None
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer) -> int:
        while not self._text:
            has_ended = self._frame is None or self._frame.eof
            block = (self._frame.unused_data if self._frame and has_ended else b"") or self._file.read(self._BLOCK)
            if not block and has_ended:
                return 0
            if not block:
                raise EOFError("it ended inside a frame")
            try:
                self._frame = self._decompressor.decompressobj() if has_ended else self._frame
                self._text = memoryview(self._frame.decompress(block))
            except self._error as error:
                raise EOFError(str(error)) from error
        size = min(len(buffer), len(self._text))
        buffer[:size] = self._text[:size]
        self._text = self._text[size:]
        return size
