"""Read members of model archives, ZIP and tar (`.tar`, `.tar.gz`, `.tar.bz2`, `.tar.xz`), within limits of size."""

import bz2
import contextlib
import gzip
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from elmo_fast.files import stops
from elmo_fast.files.hdf5 import check_unpacked

_COMPRESSIONS: dict[bytes, Callable] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_TAR, _TAR_AT, _BLOCK = b"ustar", 257, 512
_LARGEST_HEADER = 1 << 20  # bytes; tarfile reads a whole header into memory
_MOST_MEMBERS = 100_000
_MOST_UNPACKED = 1 << 30  # bytes that any tar may have: it is decompressed to its end before its members are known


class Member(NamedTuple):
    """A file in an archive: path, size in bytes, and a function that opens it. Read members in the list's order."""

    path: str
    size: int
    open: Callable[[], IO[bytes]]


def is_archive(path: Path) -> bool:
    """Whether a file is a ZIP, or begins as a tar or as a compressed file."""
    with open(path, "rb") as file:
        start = file.read(_BLOCK)
    return start.startswith(tuple(_COMPRESSIONS)) or _is_tar(start) or zipfile.is_zipfile(path)


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[list[Member]]:
    """The files of an archive, without links. A damaged archive raises errors of any type, in the body too."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield [Member(info.filename, info.file_size, lambda info=info: archive.open(info))
                   for info in archive.infolist()]
        return
    with _stream(path) as stream, tarfile.open(fileobj=_Headers(stream), mode="r:") as archive:
        members = []
        for number, info in enumerate(archive):
            if number == _MOST_MEMBERS:
                raise ValueError(f"more than {_MOST_MEMBERS:,} members")
            _check_size(path, info.offset_data + info.size)  # before the next header, to which tarfile decompresses
            if info.isreg():
                members.append(Member(info.name, info.size, lambda info=info: archive.extractfile(info)))
        _check_end(path, stream, archive.offset)
        yield members


def _is_tar(start: bytes) -> bool:
    return start[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a tar."""
    with open(path, "rb") as file:
        start = file.read(max(map(len, _COMPRESSIONS)))
    opener: Any = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), open)
    with opener(path, "rb") as stream:
        if not _is_tar(stream.read(_BLOCK)):
            raise tarfile.ReadError("no tar inside")
        stream.seek(0)
        yield stream


class _Headers:
    """A file that refuses to read a header of more than 1 MiB at once."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise ValueError(f"a header of {size:,} bytes")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _check_size(path: Path, end: int) -> None:
    check_unpacked(f"model {path}", end, path.stat().st_size, _MOST_UNPACKED)


def _check_end(path: Path, stream: IO[bytes], offset: int) -> None:
    """Raise for a damaged header at `offset`, which tarfile mistakes for the end, and for a wrong checksum."""
    stream.seek(offset)
    if stream.read(_BLOCK).strip(b"\0"):
        raise tarfile.ReadError("a damaged header")
    while stream.read(_LARGEST_HEADER):
        _check_size(path, stream.tell())
        stops.check()
