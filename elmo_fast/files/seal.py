"""The seal at the end of a file of vectors, after the part that HDF5 reads: progress, and checksums of every byte.

Layout: int64 [1 + blocks], the number of written vectors and the CRC-32 of every block of 256 vectors; then
the fields of `Seal`, and the CRC-32 of the HDF5 file without the vectors and of these fields. The HDF5 file is compared
before it is parsed: damaged metadata can send HDF5 into an endless loop.
"""

import os
import struct
import zlib
from typing import IO, NamedTuple

import numpy as np

from elmo_fast.errors import ConfigurationError


class Kind(NamedTuple):
    """A kind of sealed file: the 8 bytes that mark its seal, and the words for errors."""

    magic: bytes
    name: str
    remedy: str


TABLE = Kind(b"ELMOtab2", "token table", "write it again (elmo-fast cache)")
PACKED = Kind(b"ELMOvec1", "embeddings", "write them again")
ROWS = 256  # vectors in a block
_FIELDS, _SUM = struct.Struct("<8s4Q"), struct.Struct("<I")
_SIZE = _FIELDS.size + _SUM.size
_PIECE = 1 << 20


class Seal(NamedTuple):
    """Sizes in bytes: of the HDF5 file, of the vectors and where they begin; `rows` is the number of vectors."""

    size: int
    first: int
    length: int
    rows: int

    @property
    def blocks(self) -> int:
        return -(-self.rows // ROWS)


def write_seal(file: IO[bytes], first: int, length: int, rows: int, kind: Kind = TABLE) -> Seal:
    """Seal an HDF5 file whose vectors are at `first`, none of them written yet; it is open to read and write."""
    seal = Seal(file.seek(0, os.SEEK_END), first, length, rows)
    fields = _FIELDS.pack(kind.magic, *seal)
    end = bytes(8 * (1 + seal.blocks)) + fields + _SUM.pack(_sum(file, seal, fields))
    file.seek(seal.size)
    file.write(end)
    return seal


def read_seal(path: str | os.PathLike, kind: Kind = TABLE) -> tuple[Seal, np.ndarray] | None:
    """The seal and progress, int64 [1 + blocks], of a file; None for a file without a seal, or that cannot be read.

    `ConfigurationError` if a byte of the file outside the vectors has changed.
    """
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return None  # HDF5's errors are more specific
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - _SIZE))
        fields, expected = file.read(_FIELDS.size), file.read()
        if len(expected) < _SUM.size or not fields.startswith(kind.magic):
            return None
        seal = Seal(*_FIELDS.unpack(fields)[1:])
        fits = seal.first + seal.length <= seal.size == end - _SIZE - 8 * (1 + seal.blocks)
        if not fits or expected != _SUM.pack(_sum(file, seal, fields)):
            raise _damaged(os.fspath(path), "its header", kind)
        file.seek(seal.size)
        return seal, np.frombuffer(file.read(8 * (1 + seal.blocks)), dtype=np.int64).copy()


def _damaged(name: str, what: str, kind: Kind) -> ConfigurationError:
    """The error for a file in which the checksum of `what` differs from the stored one."""
    return ConfigurationError(f"{kind.name} {name}: expected the checksums it was written with, found damage in "
                              f"{what}; {kind.remedy}")


class Blocks:
    """The blocks of vectors [V, ...] in memory, compared with their checksums when first used."""

    def __init__(self, name: str, values: np.ndarray, sums: np.ndarray, kind: Kind = TABLE):
        self._name, self._values, self._sums, self._kind = name, values, sums, kind
        self._pending = np.ones(len(sums), dtype=bool)
        self.left = len(sums)  # blocks not yet compared

    def fits(self, block: int) -> bool:
        """Whether a block's values match its checksum."""
        return zlib.crc32(self._values[block * ROWS : (block + 1) * ROWS]) == self._sums[block]

    def check(self, rows: np.ndarray | None = None) -> None:
        """Compare the blocks of some rows, int [N], or all. `ConfigurationError` for damage."""
        blocks = np.arange(len(self._sums)) if rows is None else np.unique(rows // ROWS)
        for block in blocks[self._pending[blocks]].tolist():
            if not self.fits(block):
                raise _damaged(self._name, f"the vectors from number {block * ROWS} on", self._kind)
            self._pending[block] = False
        self.left = int(self._pending.sum())


def _sum(file: IO[bytes], seal: Seal, fields: bytes) -> int:
    """CRC-32 of the HDF5 file without the vectors, and of the seal's fields."""
    value = 0
    for begin, end in ((0, seal.first), (seal.first + seal.length, seal.size)):
        file.seek(begin)
        for offset in range(begin, end, _PIECE):
            value = zlib.crc32(file.read(min(_PIECE, end - offset)), value)
    return zlib.crc32(fields, value)
