"""HDF5 files that appear only when they are whole, and survive a full disk."""

import contextlib
import ctypes
import functools
import io
import os
from collections.abc import Iterator
from pathlib import Path

import h5py

from elmo_fast.model.atomic_file import atomic_path

_TRIM_EVERY = 32 << 20  # bytes written between two returns of free memory


class Disk(io.FileIO):
    """A file that keeps a failed write to itself, a full disk or Ctrl-C: HDF5 crashes when it closes after one."""

    def __init__(self, part: Path, target: str | os.PathLike):
        super().__init__(part, "x+")
        self.target = os.fspath(target)
        self.failure: BaseException | None = None
        self._since_trim = 0

    def write(self, values) -> int:
        """Write all of `values`, or keep the reason and say that it was done."""
        try:
            rest = memoryview(values).cast("B")
            while rest and not self.failure:
                rest = rest[super().write(rest):]
        except BaseException as error:
            self.failure = error
        size = memoryview(values).nbytes
        self._since_trim += size
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size, or keep the reason; after a failure there is nothing to set it for."""
        try:
            return size if self.failure else super().truncate(size)
        except BaseException as error:
            self.failure = error
            return size

    def check(self) -> None:
        """Raise the failure that was kept. Now and then hands free memory back to the system.

        What HDF5 keeps of every data set comes to lie between the large arrays of a model, which then find no room
        among the freed ones: the process would grow with the file.
        """
        if self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            _trim()(0)
        if isinstance(self.failure, OSError):
            raise OSError(self.failure.errno, self.failure.strerror, self.target) from self.failure
        if self.failure:
            raise self.failure


@functools.cache
def _trim():
    """glibc's `malloc_trim`; elsewhere nothing."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: 0


@contextlib.contextmanager
def atomic_hdf5(target: str | os.PathLike) -> Iterator[tuple[h5py.File, Disk]]:
    """A new HDF5 file that becomes `target` when the body succeeds, and the disk below it, to check in a long body."""
    with atomic_path(target) as part, Disk(part, target) as disk:
        with h5py.File(disk, "w") as file:
            yield file, disk
        disk.check()
