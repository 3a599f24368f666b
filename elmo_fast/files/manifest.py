"""Names, sizes and checksums of files as they were written, compared with the files before they are used.

Partial results, directories of shards and runs of training list them in their JSON files; docs/reliability.md and
docs/formats.md describe these formats. A `seal` differs: it has checksums of blocks, which are read in any order.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PIECE = 1 << 22  # bytes read at a time


@dataclass(frozen=True)
class StoredFile:
    """A file in a directory, its size in bytes and its CRC-32."""

    name: str
    size: int
    checksum: int

    @classmethod
    def of(cls, path: Path, check: Callable[[], None] = lambda: None) -> "StoredFile":
        """The present state of a file; `check` is called after every piece that is read, and may raise."""
        value = 0
        for piece in _pieces(path):
            value = zlib.crc32(piece, value)
            check()
        return cls(path.name, path.stat().st_size, value)

    def damage(self, folder: Path, content: bool = True) -> str | None:
        """How the file of this name in `folder` differs, in words, or None; `content` also compares its bytes."""
        path = folder / self.name
        if not path.is_file():
            return "is missing"
        if (size := path.stat().st_size) != self.size:
            return f"has {size:,} bytes, not {self.size:,}"
        if content and self.of(path) != self:
            return "has another checksum than when it was written"
        return None


def is_file_name(name: str) -> bool:
    """Whether a name is that of a file directly in a directory, on any system, not a path to another place."""
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def sha256_of(path: Path, size: int | None = None) -> str:
    """SHA-256 of a file, or of its first `size` bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for piece in _pieces(path, size):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path, size: int | None = None) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(_PIECE if size is None else min(_PIECE, size - file.tell())):
            yield piece
