"""Files and directories written atomically, by a process at a time: they take their name only when complete."""

import contextlib
import ctypes
import io
import logging
import os
import re
import secrets
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from elmo_fast import stops
from elmo_fast.choices import check_path, local_path
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.system import TakenError, lock_file, start_of

if TYPE_CHECKING:
    import h5py  # imported where it is used: the help of the command needs none

# h5py's errors for damaged files: HDF5's own, mapped to the nearest Python error.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
_TRIM_EVERY = 32 << 20  # bytes written between two returns of free memory
_PAUSE = 0.1  # seconds between two attempts to get a lock

logger = logging.getLogger(__name__)


class _Held(NamedTuple):
    """Who has a lock, the path of the partial file that is named in it, and whether nothing is written yet."""

    process: int
    thread: int
    partial: Path
    is_reserved: bool


_PARTIAL = re.compile(r"\.[0-9a-f]{8}\.part")
_held: dict[Path, _Held] = {}  # the locks of this process, which the system counts by processes, not by threads


@contextlib.contextmanager
def locked(target: str | os.PathLike, reserve: bool = False, wait: bool = False) -> Iterator[Path]:
    """The right to write `target`, a file or a directory, while the body runs: `ConfigurationError` if it is taken.

    With `wait` another process or thread that has it is waited for, and a line of the log names the process.

    Yields a path for a partial file. The lock is on the file `TARGET.lock`, which holds the process, its host and the
    partial file's name: what is left of that file is removed at the end, or after a kill by the next process. A thread
    may write the files of a directory that it has locked, and, with `reserve`, take the lock again. In the body stops
    are deferred (see `stops`). Readers need no lock.
    """
    final = Path(os.path.realpath(local_path(target)))
    partial = final.with_name(f"{final.name}.{secrets.token_hex(4)}.part")
    mine = _Held(os.getpid(), threading.get_ident(), partial, reserve)
    while (held := _held.setdefault(final, mine)).thread != mine.thread and held.process == mine.process and wait:
        stops.check()
        time.sleep(_PAUSE)
    again = held is not mine and held.is_reserved and held[:2] == mine[:2]
    if held is not mine and held.process == mine.process and not again:
        raise ConfigurationError(f"output {final}: expected no other writer, found one in this process")
    used = held._replace(is_reserved=False) if again else mine
    _held[final] = used  # also in place of what a fork copied from its parent
    is_inside = again or any((above := _held.get(path)) and above[:2] == mine[:2] for path in final.parents)
    try:
        with contextlib.nullcontext() if is_inside else _lock_file(final, mine, wait):
            try:
                yield used.partial
            finally:
                if os.getpid() == mine.process:
                    _remove_mapped(used.partial)
    finally:
        if again:
            _held[final] = held
        else:
            del _held[final]


@contextlib.contextmanager
def _lock_file(final: Path, mine: _Held, wait: bool) -> Iterator[None]:
    """The lock file of an output, there and locked while the body runs."""
    with stops.stoppable():
        stops.check()
        with _lock(final, mine, wait):
            yield


def _lock(final: Path, mine: _Held, wait: bool) -> contextlib.ExitStack:
    """Lock it, remove what a killed owner left, and write who has it now; the stack that is returned releases it."""
    with contextlib.ExitStack() as stack:
        file = _take(stack, final, wait)
        content = _words(start_of(file))
        if len(content) == 3 and _PARTIAL.fullmatch(content[2]):
            for folder in filter(Path.is_dir, (final.parent, final)):
                _remove(folder / f"{final.name}{content[2]}")
        try:
            file.truncate(0)
            file.write(f"{mine.process} {socket.gethostname()} {mine.partial.name.removeprefix(final.name)}\n".encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, file.name) from error
        return stack.pop_all()


def _take(stack: contextlib.ExitStack, final: Path, wait: bool) -> IO[bytes]:
    path, is_logged = final.with_name(f"{final.name}.lock"), False
    while True:
        try:
            return stack.enter_context(lock_file(path))
        except TakenError as taken:
            owner = _words(taken.note)
        process, host = [*owner, "unknown", "an unknown host"][:2]
        if not wait:
            raise ConfigurationError(f"output {final}: expected no other process to write it, found process {process} "
                                     f"on {host}, which has locked {path}")
        if owner and not is_logged:
            logger.warning("waiting for process %s on %s, which writes %s", process, host, final)
            is_logged = True
        stops.check()
        time.sleep(_PAUSE)


def _words(note: bytes) -> list[str]:
    return note.decode(errors="replace").split()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_mapped(path: Path) -> None:
    """Remove a partial file or directory, though frames of an error in flight hold maps of it, which Windows keeps."""
    try:
        _remove(path)
    except PermissionError as error:
        in_flight = error.__context__
        while in_flight:
            traceback.clear_frames(in_flight.__traceback__)
            in_flight = in_flight.__context__
        _remove(path)


def remove_partials(folder: Path) -> None:
    """Remove what killed processes left in a directory, which must be locked."""
    for path in folder.rglob("*.part"):
        if _PARTIAL.search(path.name):
            _remove(path)


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike) -> Iterator[Path]:
    """A path beside `target` that replaces it when the body succeeds, and is removed when the body fails.

    The body makes a file there. A symbolic link is followed, an old file replaced. Other writers are refused.
    """
    final = Path(os.path.realpath(local_path(target)))
    with locked(final) as part:
        yield part
        replace(part, final)


def replace(part: Path, final: Path) -> None:
    """Rename a closed file, in place of an old one. `PermissionError` names that: on Windows it must not be open."""
    try:
        os.replace(part, final)
    except PermissionError as error:
        reason = f"expected a file that can be replaced ({error.strerror}); on Windows, close it in other programs"
        raise PermissionError(error.errno, reason, os.fspath(final)) from error


def store_once(target: Path, make: Callable[[Path], None]) -> None:
    """Have `make` write `target`, a file or a directory, at another path, unless it is there.

    A process or a thread that does so already is waited for, and its copy is taken. A file that is there is not locked.
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

    With `last` it may be a directory: the new files are moved into it. `last`, a file without which nothing can be
    loaded, is removed before the others are moved and put there at the end: old and new files do not mix.
    """
    target = local_path(target)
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
                (final / last).unlink(missing_ok=True)
                for file in sorted(part.iterdir(), key=lambda file: file.name == last):
                    replace(file, final / file.name)
        finally:
            _remove(part)


def check_target(path: str | os.PathLike, name: str) -> None:
    """Raise `OSError` when no file can be written at `path`, before any work is done for it; `name` is what it is.

    `ValueError` for what is no path.
    """
    target = check_path(name, path)
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


def write_bytes(target: str | os.PathLike, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(target) as part, Disk(part, target) as disk:
        disk.write(content)
        disk.check()


@contextlib.contextmanager
def atomic_hdf5(target: str | os.PathLike) -> Iterator[tuple["h5py.File", Disk]]:
    """A new HDF5 file that becomes `target` when the body succeeds, and its `Disk`, to check in a long body."""
    with atomic_path(target) as part, new_hdf5(part, target) as opened:
        yield opened


@contextlib.contextmanager
def new_hdf5(path: Path, target: str | os.PathLike, **options) -> Iterator[tuple["h5py.File", Disk]]:
    """A new HDF5 file, with options of `h5py.File`, and its `Disk`; errors name `target`."""
    import h5py

    with Disk(path, target) as disk:
        with h5py.File(disk, "w", **options) as file:
            limit_cache(file)
            yield file, disk
        disk.check()


def limit_cache(file: "h5py.File") -> None:
    """Keep HDF5's cache of records at 1 MiB and what a large one needs, such as the names of a group.

    By itself it grows to 32 MiB with a file of many datasets, whose small records take ten times that in memory.
    """
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = 1 << 20
    config.max_size = 128 << 20  # the most that HDF5 takes
    config.incr_mode = config.decr_mode = 0  # no change with the rate of hits
    config.flash_incr_mode, config.flash_multiple, config.flash_threshold = 1, 1.1, 0.1
    file.id.set_mdc_config(config)
