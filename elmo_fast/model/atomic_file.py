"""Files written atomically: they take their name only when complete."""

import contextlib
import ctypes
import io
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import h5py  # imported where it is used: the help of the command needs none

# h5py's errors for damaged files: HDF5's own, mapped to the nearest Python error.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
_TRIM_EVERY = 32 << 20  # bytes written between two returns of free memory


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike) -> Iterator[Path]:
    """A path beside `target` that replaces it when the body succeeds, and is removed when the body fails.

    The body makes a file or a directory there. A symbolic link is followed, an old file replaced; a directory that
    another process finished first is kept. The name is random: process ids repeat from container to container, and
    what a killed process left behind must not block another.
    """
    final = Path(os.path.realpath(target))
    part = final.with_name(f"{final.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        try:
            os.replace(part, final)
        except OSError:
            if not (part.is_dir() and final.is_dir()):
                raise
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


def check_target(path: str | os.PathLike, name: str) -> None:
    """Raise `OSError` when no file can be written at `path`, before any work is done for it; `name` is what it is."""
    target = os.fspath(path)
    folder = target if target.endswith("/") else os.path.dirname(os.path.realpath(target))
    if not target:
        raise FileNotFoundError(f"{name}: expected a file's path, got an empty one")
    if os.path.isdir(target):
        raise IsADirectoryError(f"{name}: expected a file's path, got the directory {target}")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{name}: expected an existing directory, found none at {folder}")
    if os.path.exists(target) and not os.path.isfile(target):
        raise PermissionError(f"{name}: expected an ordinary file, which can be replaced when all is written, "
                              f"got the device or pipe {target}")
    if not os.access(folder, os.W_OK) or (os.path.exists(target) and not os.access(target, os.W_OK)):
        raise PermissionError(f"{name}: expected a path that can be written, got {target}")


class Disk(io.FileIO):
    """A file that stores the error of a failed write, a full disk or Ctrl-C: HDF5 crashes when it closes after one."""

    def __init__(self, part: Path, target: str | os.PathLike):
        super().__init__(part, "x+")
        self.target = os.fspath(target)
        self.failure: BaseException | None = None
        self._since_trim = 0

    def write(self, values) -> int:
        """Write all of `values`, or store the error and report success."""
        size = memoryview(values).nbytes
        try:
            rest = memoryview(values).cast("B")
            while rest and not self.failure:
                rest = rest[super().write(rest):]
        except BaseException as error:
            self.failure = error
        self._since_trim += size
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size, or store the error; after a failure nothing is done."""
        try:
            return size if self.failure else super().truncate(size)
        except BaseException as error:
            self.failure = error
            return size

    def check(self) -> None:
        """Raise the stored error. Every 32 MiB, return free memory to the system.

        HDF5's records of data sets fragment the heap between the large arrays of a model, whose freed memory is then
        not reused: the process would grow with the file.
        """
        if self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone has it
                ctypes.CDLL(None).malloc_trim(0)
        if isinstance(self.failure, OSError):
            raise OSError(self.failure.errno, self.failure.strerror, self.target) from self.failure
        if self.failure:
            raise self.failure


@contextlib.contextmanager
def atomic_hdf5(target: str | os.PathLike) -> Iterator[tuple["h5py.File", Disk]]:
    """A new HDF5 file that becomes `target` when the body succeeds, and its `Disk`, to check in a long body."""
    import h5py

    with atomic_path(target) as part, Disk(part, target) as disk:
        file = None
        try:
            with deferred_signals():
                file = h5py.File(disk, "w")
            yield file, disk
        finally:
            if file is not None:
                with deferred_signals():
                    file.close()
        disk.check()


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Run the handlers of SIGINT and SIGTERM after the body: HDF5 loses what a handler raises inside its callbacks."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    handlers = {number: handler for number in (signal.SIGINT, signal.SIGTERM)
                if callable(handler := signal.getsignal(number))}
    arrived: list[tuple] = []
    for number in handlers:
        signal.signal(number, lambda *arguments: arrived.append(arguments))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in arrived:
            handlers[number](number, frame)
