"""What files were when they were written, to be compared before they are used: names, sizes and checksums.

Partial results, directories of shards and runs of training list them in JSON of their own; docs/reliability.md and
docs/formats.md describe these formats. A `seal` differs: its checksums are of blocks, which are read at random.
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
        """A file as it is now; `check` is called after every piece that is read, and may raise."""
        value = 0
        for piece in _pieces(path):
            value = zlib.crc32(piece, value)
            check()
        return cls(path.name, path.stat().st_size, value)

    def damage(self, folder: Path, content: bool = True) -> str | None:
        """How the file of this name in a directory differs, in words; its bytes are compared with `content`."""
        path = folder / self.name
        if not path.is_file():
            return "is missing"
        if (size := path.stat().st_size) != self.size:
            return f"has {size:,} bytes, not {self.size:,}"
        if content and self.of(path) != self:
            return "has another checksum than when it was written"
        return None


def is_file_name(name: str) -> bool:
    """Whether a name can be one of a file in a directory: it leads nowhere else, on any system."""
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
