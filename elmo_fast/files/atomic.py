"""Write files and directories atomically: they get their name only when complete."""

import contextlib
import ctypes
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from elmo_fast.arguments import check_path, local_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.lock import locked, own_file, remove

_TRIM_EVERY = 32 << 20  # bytes written before free memory is returned again


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike) -> Iterator[Path]:
    """A path beside `target` that replaces it when the body succeeds, and is removed when the body fails.

    The body creates a file at this path. A symbolic link is followed, an old file replaced; a device, pipe or directory
    is refused, as are other writers.
    """
    final = Path(os.path.realpath(local_path(target)))
    check_target(final, "output")
    with locked(final) as part:
        yield part
        replace(part, final)


def replace(part: Path, final: Path) -> None:
    """Rename a closed file to `final`. `PermissionError` names an old file, which on Windows must not be open."""
    try:
        os.replace(part, final)
    except PermissionError as error:
        reason = f"expected a file that can be replaced ({error.strerror}); on Windows, close it in other programs"
        raise PermissionError(error.errno, reason, os.fspath(final)) from error


def store_once(target: Path, make: Callable[[Path], None]) -> None:
    """Unless `target` exists, have `make` write it, a file or a directory, at a temporary path, then rename it.

    Waits for a process or thread that is already writing `target`, and keeps its copy. An existing file is not locked.
    """
    final = Path(os.path.realpath(target))
    if not final.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
        with locked(final, wait=True) as part:
            if not final.exists():
                make(part)
                part.rename(final)


@contextlib.contextmanager
def atomic_directory(target: str | os.PathLike, last: str | None = None) -> Iterator[Path]:
    """A new directory that becomes `target`, by a rename, when the body succeeds; `target` must not exist.

    With `last` the target may be a directory: the new files are moved into it, in place of files that begin alike; any
    other in their place is refused. The file `last`, without which nothing can be loaded, is removed before the other
    files are moved, and moved at the end: old and new files do not mix.
    """
    target = local_path(target)
    refuse_stdout(target, "output")
    final = Path(os.path.realpath(target))
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(final) as part:
        is_new = not os.path.lexists(target)
        if not is_new and (last is None or not final.is_dir()):
            raise ConfigurationError(f"output: expected a new directory, found {target} there already")
        part = part if is_new else final / part.name
        part.mkdir()
        try:
            yield part
            if is_new:
                part.rename(final)
            else:
                files = sorted(part.iterdir(), key=lambda file: file.name == last)
                for file in files:
                    own_file(final / file.name, "output", f"an earlier {file.name}", _begins_as(file))
                (final / last).unlink(missing_ok=True)
                for file in files:
                    replace(file, final / file.name)
        finally:
            remove(part)


def _begins_as(path: Path) -> Callable[[bytes, int], bool]:
    """For `own_file`: whether a file begins with the first four bytes of the file at `path`."""
    with open(path, "rb") as file:
        own = file.read(4)
    return lambda start, _: start.startswith(own)


def refuse_stdout(path: str, name: str) -> None:
    """Raise `ConfigurationError` for `-`: an output is a file, since it is written atomically."""
    if path == "-":
        raise ConfigurationError(f"{name}: expected the name of a file, got -: this output cannot be written to stdout "
                                 "(./- is a file of that name)")


def check_target(path: str | os.PathLike, name: str) -> None:
    """Raise `OSError` when no file can be written at `path`, before any work is done; errors call it `name`.

    `ValueError` for a value that is not a path, and for `-`.
    """
    target = check_path(name, path)
    refuse_stdout(target, name)
    folder = target if target.endswith(("/", os.sep)) else os.path.dirname(os.path.realpath(target))
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


class DeferredErrorFile(io.FileIO):
    """A file that stores the error of a failed write (full disk, Ctrl-C): HDF5 crashes if it sees one and then closes.

    The error is raised at the end of the `with` body; a long body calls `check` in between.
    """

    def __init__(self, part: Path, target: str | os.PathLike):
        super().__init__(part, "x+")
        self.target = os.fspath(target)
        self.failure: BaseException | None = None
        self._since_trim = 0

    def __exit__(self, kind, *_) -> None:
        self.close()
        if kind is None:
            self.check()

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
        """Set the size, or store the error; does nothing after a failure."""
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
            with contextlib.suppress(AttributeError, OSError, TypeError):  # only glibc has malloc_trim
                ctypes.CDLL(None).malloc_trim(0)
        if isinstance(self.failure, OSError):
            raise OSError(self.failure.errno, self.failure.strerror, self.target) from self.failure
        if self.failure:
            raise self.failure


def write_bytes(target: str | os.PathLike, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(target) as part:
        write_part(part, target, content)


def write_part(part: Path, target: str | os.PathLike, content: bytes) -> None:
    """Write the partial file of `target`; errors name `target`."""
    with DeferredErrorFile(part, target) as disk:
        disk.write(content)


def to_disk(path: Path) -> None:
    """Have the system write a file, or the names in a directory, to the disk.

    On Windows directories cannot be opened or written to the disk, nor can files that are open only for reading.
    """
    is_directory = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if is_directory else os.O_RDWR)
    except PermissionError:
        if is_directory and os.access(path, os.R_OK):
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        os.close(descriptor)
