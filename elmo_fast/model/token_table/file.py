"""Files of token tables: bilm-tf's HDF5 with the dataset `embedding`, and what identifies its words and its model.

docs/token_tables.md has the layout. A resumable writer's file has also `done`, its number of vectors.
"""

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import torch

from elmo_fast.choices import STORAGES
from elmo_fast.model.atomic_file import HDF5_ERRORS, atomic_hdf5, check_target
from elmo_fast.model.hdf5 import open_hdf5
from elmo_fast.model.options import ConfigurationError
from elmo_fast.ops.precision import check_precision
from elmo_fast.text.batching import BOUNDARIES
from elmo_fast.text.vocabulary import Vocabulary

FORMAT_VERSION = 1
_ROWS_AT_ONCE = 1 << 14

logger = logging.getLogger(__name__)


class TableFile(NamedTuple):
    """Content of a file: `vectors` [V, P], and `words` and `fingerprint` unless bilm-tf wrote it.

    `precision` is what the vectors were computed in; bilm-tf's files do not record it and are fp32.
    """

    vectors: torch.Tensor
    words: list[str] | None
    fingerprint: str | None
    precision: str


def read_table(path: str | os.PathLike, device: torch.device | None = None) -> TableFile:
    """Read a table: onto `device`, or memory-mapped without one.

    Raises `ConfigurationError` for a file that is not HDF5, is cut short, holds no `embedding` [V, P] of float32 or
    float16, has another number of words than of vectors, or a later format version.
    """
    name = os.fspath(path)

    def require(fits: bool, message: str) -> None:
        if not fits:
            raise ConfigurationError(f"token table {name}: {message}")

    with open_hdf5(path, "token table") as file:
        dataset, words, attributes = file.get("embedding"), None, file.attrs
        require(isinstance(dataset, h5py.Dataset), f"expected the dataset embedding, found {sorted(file)}")
        require(dataset.ndim == 2 and 0 not in dataset.shape and dataset.dtype.name in STORAGES,
                f"embedding: expected float32 or float16 of shape [words, values], found {dataset.dtype} of shape "
                f"{dataset.shape}")
        if "vocabulary" in file:
            words = split(file["vocabulary"][...], file["vocabulary_ends"][...])
            require(len(words) == len(dataset),
                    f"expected a word for each of {len(dataset)} vectors, found {len(words)}")
        fingerprint, version = attributes.get("fingerprint"), int(attributes.get("format_version", 0))
        require(fingerprint is None or 1 <= version <= FORMAT_VERSION, "expected format version 1 to "
                f"{FORMAT_VERSION}, found {version}; a newer elmo-fast may read it")
        precision, offset = check_precision(str(attributes.get("precision", "highest"))), dataset.id.get_offset()
        if device is None and offset is not None and dataset.dtype.isnative:
            # Copy on write: torch requires writable memory, and the file must not change.
            values = np.memmap(name, dataset.dtype, "c", offset, dataset.shape)
        else:
            values = dataset[...].astype(dataset.dtype.newbyteorder("="), copy=False)
        return TableFile(torch.from_numpy(values).to(device or "cpu"), words,
                         None if fingerprint is None else str(fingerprint), precision)


def write_table(path: str | os.PathLike, vectors: torch.Tensor, words: Sequence[str] | None,
                fingerprint: str | None, precision: str) -> None:
    """Write a table atomically."""
    check_target(path, "token table")
    with atomic_hdf5(path) as (file, disk):
        dtype = str(vectors.dtype).removeprefix("torch.")
        dataset = file.create_dataset("embedding", tuple(vectors.shape), dtype=dtype)
        for first in range(0, len(vectors), _ROWS_AT_ONCE):
            dataset[first : first + _ROWS_AT_ONCE] = vectors[first : first + _ROWS_AT_ONCE].cpu().numpy()
            disk.check()
        describe(file, words, fingerprint, precision)


def describe(file: h5py.File, words: Sequence[str] | None, fingerprint: str | None, precision: str) -> None:
    """Put the vocabulary and the attributes beside `embedding`, as far as they are known."""
    if words is not None:
        file["vocabulary"], file["vocabulary_ends"] = joined(words)
    if fingerprint is not None:
        file.attrs["format_version"] = FORMAT_VERSION
        file.attrs["fingerprint"] = fingerprint
    file.attrs["precision"] = precision


def joined(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Words as UTF-8 bytes end to end, uint8, and the end of each, int64 [V]. Lone surrogates are encoded too."""
    encoded = [_checked(word).encode("utf-8", "surrogatepass") for word in words]
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), np.cumsum(lengths)


def split(text: np.ndarray, ends: np.ndarray) -> list[str]:
    """Undo `joined`; `ValueError` for ends that do not fit."""
    content, bounds = text.tobytes(), [0, *ends.tolist()]
    pairs = list(itertools.pairwise(bounds))
    if bounds[-1] != len(content) or any(end < begin for begin, end in pairs):
        raise ValueError(f"vocabulary_ends: expected ends within {len(content)} bytes, the last at the end")
    return [content[begin:end].decode("utf-8", "surrogatepass") for begin, end in pairs]


def words_of(vocabulary: str | os.PathLike | Iterable[str]) -> list[str]:
    """Words of a vocabulary file, which must have `<S>` and `</S>`, or of an iterable.

    Where an iterable lacks the two they are put at its end: the numbers of its words stay.
    """
    if isinstance(vocabulary, (str, os.PathLike)):
        read = Vocabulary(vocabulary)
        read.require(*BOUNDARIES)
        return list(read.words)
    if not isinstance(vocabulary, Iterable):
        raise ValueError(f"vocabulary: expected a file or words, got {type(vocabulary).__name__}")
    words = list(map(_checked, vocabulary))
    known = set(words)
    return words + [word for word in BOUNDARIES if word not in known]


class ResumableWriter:
    """Writes a table block by block into `TARGET.part`, from which a run goes on where a killed one ended.

    The HDF5 structure is complete before any vector is written. Vectors, and then their number `done`, are written at
    their offsets in the file and synced: at any moment the file records what it has. It is renamed when it is full.
    Only one process may write it at a time.
    """

    def __init__(self, target: str | os.PathLike, words: Sequence[str], dim: int, storage: str, fingerprint: str,
                 precision: str):
        self._target = Path(os.path.realpath(target))
        self._path = self._target.with_name(f"{self._target.name}.part")
        self._description = list(words), fingerprint, precision
        self._shape, self._dtype = (len(words), dim), np.dtype(storage)
        self._file = None
        self.done = 0

    def __enter__(self) -> "ResumableWriter":
        if self._path.exists():
            self._open()
            if self._resume():
                return self
            logger.info("%s: starts over, since %s is of another vocabulary, model, precision or storage, or damaged",
                        self._target.name, self._path.name)
            self._file.close()
        with atomic_hdf5(self._path) as (file, _):  # everything but the vectors; contiguous, as in bilm-tf's files
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            h5py.h5d.create(file.id, b"embedding", h5py.h5t.py_create(self._dtype),
                            h5py.h5s.create_simple(self._shape), dcpl=properties)
            file["done"] = np.zeros(1, dtype=np.int64)
            describe(file, *self._description)
        self._open()
        self._resume()
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def append(self, vectors: np.ndarray) -> None:
        """Write the next vectors [N, P] to the disk, then count them."""
        values = np.ascontiguousarray(vectors, dtype=self._dtype)
        self._put(self._first_offset + self.done * self._shape[1] * self._dtype.itemsize, values)
        os.fsync(self._file.fileno())
        self.done += len(values)
        self._put(self._done_offset, np.array([self.done], dtype=np.int64))

    def finish(self) -> None:
        """Rename the file to its target; every vector must have been written."""
        if self.done != self._shape[0]:
            raise ValueError(f"vectors: expected {self._shape[0]}, got {self.done}")
        os.fsync(self._file.fileno())
        os.replace(self._path, self._target)

    def _open(self) -> None:
        self._file = open(self._path, "r+b", buffering=0)  # noqa: SIM115
        try:
            import fcntl
        except ImportError:  # not POSIX: no lock against a second run
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigurationError(f"token table {self._target}: expected no other process to write it, "
                                     f"found one that writes {self._path.name}") from None

    def _resume(self) -> bool:
        """Read offsets and `done` of the open file; False when it is not a partial file of this table."""
        try:
            with open(self._path, "rb") as again, h5py.File(again, "r") as file:
                embedding, done = file["embedding"], file["done"]
                self._first_offset, self._done_offset = embedding.id.get_offset(), done.id.get_offset()
                self.done = int(done[0])
                words = split(file["vocabulary"][...], file["vocabulary_ends"][...])
                return (embedding.shape == self._shape and embedding.dtype == self._dtype
                        and (words, file.attrs["fingerprint"], file.attrs["precision"]) == self._description
                        and 0 <= self.done <= self._shape[0] and None not in (self._first_offset, self._done_offset))
        except HDF5_ERRORS:
            return False

    def _put(self, offset: int, values: np.ndarray) -> None:
        rest = memoryview(values).cast("B")
        self._file.seek(offset)
        while rest:
            rest = rest[self._file.write(rest) :]


def _checked(word: str) -> str:
    if not isinstance(word, str):
        raise ValueError(f"vocabulary: expected strings, got {type(word).__name__} ({word!r:.60})")
    return word
