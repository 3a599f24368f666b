"""A token table in the making, which a killed run leaves behind and the next one takes up."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.table_file import describe, joined
from elmo_fast.model.atomic_hdf5 import atomic_hdf5

_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)

logger = logging.getLogger(__name__)


class TablePart:
    """`TARGET.part`: the whole HDF5 file from the start, whose vectors are filled in by and by.

    HDF5 writes the file's structure once, before any vector. Vectors and the number of those that are done go
    straight to their places in it, the number last, so that whatever moment a run ends in, the file says what it
    has. It takes its own name when it is full. One process at a time works on it.
    """

    def __init__(self, target: str | os.PathLike, words: Sequence[str], dim: int, storage: str, fingerprint: str,
                 precision: str):
        self._target = Path(os.path.realpath(target))
        self._path = self._target.with_name(f"{self._target.name}.part")
        self._words, self._fingerprint, self._precision = words, fingerprint, precision
        self._shape, self._dtype = (len(words), dim), np.dtype(storage)
        self._file = None
        self.done = 0

    def __enter__(self) -> "TablePart":
        if self._path.exists():
            self._open()
            if not self._read():
                logger.info("%s: begins anew, since %s is of another vocabulary, model, precision or storage, or damaged",
                            self._target.name, self._path.name)
                self._file.close()
                self._create()
                self._open()
                self._read()
        else:
            self._create()
            self._open()
            self._read()
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def append(self, vectors: np.ndarray) -> None:
        """Add the next vectors [N, P], and make sure that they are on the disk before they count."""
        values = np.ascontiguousarray(vectors, dtype=self._dtype)
        self._put(self._first_byte + self.done * self._shape[1] * self._dtype.itemsize, values)
        os.fsync(self._file.fileno())
        self.done += len(values)
        self._put(self._done_byte, np.array([self.done], dtype=np.int64))

    def finish(self) -> None:
        """Give the file its name; every vector must be there."""
        if self.done != self._shape[0]:
            raise ValueError(f"vectors: expected {self._shape[0]}, got {self.done}")
        os.fsync(self._file.fileno())
        os.replace(self._path, self._target)

    def _open(self) -> None:
        self._file = open(self._path, "r+b", buffering=0)
        try:
            import fcntl
        except ImportError:  # not POSIX: nothing keeps two runs apart there
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigurationError(f"token table {self._target}: expected no other process to write it, "
                                     f"found one at work on {self._path.name}") from None

    def _create(self) -> None:
        """The file with everything but the vectors; what bilm-tf reads lies in one piece."""
        with atomic_hdf5(self._path) as (file, _):
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            h5py.h5d.create(file.id, b"embedding", h5py.h5t.py_create(self._dtype),
                            h5py.h5s.create_simple(self._shape), dcpl=properties)
            file.create_dataset("done", data=np.zeros(1, dtype=np.int64))
            describe(file, self._words, self._fingerprint, self._precision)

    def _read(self) -> bool:
        """Find the places in the open file; False when it is not the beginning of this table."""
        try:
            with open(self._path, "rb") as again, h5py.File(again, "r") as file:
                embedding, done = file["embedding"], file["done"]
                self._first_byte, self._done_byte = embedding.id.get_offset(), done.id.get_offset()
                self.done = int(done[0])
                return (embedding.shape == self._shape and embedding.dtype == self._dtype
                        and file.attrs["fingerprint"] == self._fingerprint
                        and file.attrs["precision"] == self._precision and self._same_words(file)
                        and 0 <= self.done <= self._shape[0] and None not in (self._first_byte, self._done_byte))
        except _DAMAGE:
            return False

    def _same_words(self, file: h5py.File) -> bool:
        text, ends = joined(self._words)
        return np.array_equal(file["vocabulary"][...], text) and np.array_equal(file["vocabulary_ends"][...], ends)

    def _put(self, offset: int, values: np.ndarray) -> None:
        rest = memoryview(values).cast("B")
        self._file.seek(offset)
        while rest:
            rest = rest[self._file.write(rest) :]
