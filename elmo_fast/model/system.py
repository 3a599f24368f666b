"""What differs between operating systems: locks of processes, flushes to the disk, processors and memory."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO


class TakenError(Exception):
    """Another process has a lock; `note` is the start of what it wrote into the lock file."""

    def __init__(self, note: bytes):
        super().__init__("another process has the lock")
        self.note = note


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[IO[bytes]]:
    """The file at `path`, open and locked for this process while the body runs, and then removed.

    `TakenError` while another process has the lock; the system releases it when a process ends in any way, and the file
    then stays with what was written into it. `OSError` where no file can be written or locked.
    """
    try:
        import fcntl  # noqa: F401
    except ImportError:
        locked = _beside_a_database(path)
    else:
        locked = _posix_lock(path)
    with locked as file:
        yield file


@contextlib.contextmanager
def _posix_lock(path: Path) -> Iterator[IO[bytes]]:
    """POSIX locks: unlike those of `flock`, forked workers do not inherit them. The file is removed while locked."""
    import fcntl

    owner = os.getpid()
    while True:
        with open(path, "a+b", buffering=0) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise TakenError(start_of(file)) from None
            except OSError as error:
                raise _no_locks(path, error.strerror, error.errno) from error
            if not _stands_at(file, path):  # its last owner removed it
                continue
            try:
                yield file
            finally:
                if os.getpid() == owner:
                    path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def _beside_a_database(path: Path) -> Iterator[IO[bytes]]:
    """The lock of SQLite on an empty file beside `path`: without `fcntl`, as on Windows, the library's only such lock.

    Both files are closed before they are removed. A process that has one open just then keeps it, and removes it later.
    """
    import sqlite3

    database = path.with_name(f"{path.name}.db")
    open(database, "ab").close()  # where that fails, the error has the file's name
    connection = sqlite3.connect(database, 0, isolation_level=None, check_same_thread=False)
    with contextlib.ExitStack() as closed, contextlib.closing(connection):
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")  # else there were a third file
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise _no_locks(database, str(error)) from error
            raise TakenError(_start_of_file(path)) from None
        closed.callback(_remove_unless_open, database)
        try:
            with open(path, "a+b", buffering=0) as file:
                yield file
        finally:
            _remove_unless_open(path)


def _no_locks(path: Path, reason: str | None, number: int | None = None) -> OSError:
    return OSError(number, f"expected a file system with locks ({reason})", os.fspath(path))


def _stands_at(file: IO[bytes], path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def start_of(file: IO[bytes]) -> bytes:
    """The first bytes of a file, at most 4096."""
    file.seek(0)
    return file.read(4096)


def _start_of_file(path: Path) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return start_of(file)
    return b""


def _remove_unless_open(path: Path) -> None:
    with contextlib.suppress(PermissionError):
        path.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Have the system write a file, or the names in a directory, to the disk.

    Windows has no such call for directories, which it does not open, nor for files that are open to read alone.
    """
    is_directory = path.is_dir()
    try:
        opened = os.open(path, os.O_RDONLY if is_directory else os.O_RDWR)
    except PermissionError:
        if is_directory and os.access(path, os.R_OK):
            return
        raise
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def cores() -> int:
    """Processors that this process may use, or those of the machine where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_size() -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None


def peak_memory() -> int | None:
    """The most bytes of memory that this process has had; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1 << 10)
