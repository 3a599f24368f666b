"""Locks: only one process at a time, and only one of its threads, writes a file or directory.

`TARGET.lock` carries a lock of the operating system, which releases it whenever the process ends, also by a kill.
"""

import contextlib
import logging
import os
import re
import secrets
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from elmo_fast.arguments import local_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops

_PAUSE = 0.1  # seconds between attempts to take a lock

logger = logging.getLogger(__name__)


class _Owner(NamedTuple):
    """The holder of a lock."""

    process: int
    thread: int


# What a lock file may contain, also after a power failure; `TARGET.lock` may be another program's.
_NOTE = re.compile(rb"(\d+( \S*){0,3}\s*)?\0*")
_PARTIAL = re.compile(r"\.[0-9a-f]{8}\.part")
_owners: dict[Path, _Owner] = {}  # locks held by this process; the system's locks do not tell its threads apart


@contextlib.contextmanager
def locked(target: str | os.PathLike, wait: bool = False) -> Iterator[Path]:
    """Hold the lock on writing `target`, a file or a directory, in the body; `ConfigurationError` if it is taken.

    With `wait`, wait for another process or thread that holds it; the log names the process.

    Yields a path for a partial file. The lock file `TARGET.lock` contains the process, its host and the partial file's
    name. A remaining partial file is removed at the end, or, after a kill, by the next process that takes the lock. The
    lock is not reentrant: pass the partial path on (see `lock_of`). Files in a directory that this thread has locked
    need no lock file. Stops are deferred in the body (see `stops`). Readers need no lock.
    """
    final = Path(os.path.realpath(local_path(target)))
    partial = final.with_name(f"{final.name}.{secrets.token_hex(4)}.part")
    mine = _Owner(os.getpid(), threading.get_ident())
    while (owner := _owners.setdefault(final, mine)).thread != mine.thread and owner.process == mine.process and wait:
        stops.check()
        time.sleep(_PAUSE)
    if owner is not mine and owner.process == mine.process:
        raise ConfigurationError(f"output {final}: expected no other writer, found one in this process")
    _owners[final] = mine  # replaces an entry that a fork copied from its parent
    is_inside = any(_owners.get(path) == mine for path in final.parents)
    try:
        with contextlib.nullcontext() if is_inside else _lock_file(final, partial, wait):
            try:
                yield partial
            finally:
                if os.getpid() == mine.process:
                    _remove_mapped(partial)
    finally:
        del _owners[final]


def lock_of(target: str | os.PathLike, part: Path | None) -> contextlib.AbstractContextManager[Path]:
    """`part`, the partial path of a lock that the caller holds, or, if None, a lock held in the body."""
    return contextlib.nullcontext(part) if part else locked(target)


@contextlib.contextmanager
def _lock_file(final: Path, partial: Path, wait: bool) -> Iterator[None]:
    """Hold the lock file of an output, created and locked, while the body runs."""
    with stops.stoppable():
        stops.check()
        with _lock(final, partial, wait):
            yield


def _lock(final: Path, partial: Path, wait: bool) -> contextlib.ExitStack:
    """Lock, remove the partial file of a killed owner, and write the new owner; the returned stack unlocks."""
    with contextlib.ExitStack() as stack:
        file = _acquire(stack, final, wait)
        content = _fields(_first_bytes(file))
        if len(content) == 3 and _PARTIAL.fullmatch(content[2]):
            for folder in filter(Path.is_dir, (final.parent, final)):
                remove(folder / f"{final.name}{content[2]}")
        try:
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()} {partial.name.removeprefix(final.name)}\n".encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, file.name) from error
        return stack.pop_all()


def _acquire(stack: contextlib.ExitStack, final: Path, wait: bool) -> IO[bytes]:
    path, is_logged = final.with_name(f"{final.name}.lock"), False
    if not _NOTE.fullmatch(_first_bytes_of_file(path)):
        raise ConfigurationError(f"output {final}: expected nothing or a lock of elmo-fast at {path}, found another "
                                 "file; move it away")
    while True:
        try:
            return stack.enter_context(lock_file(path))
        except TakenError as taken:
            owner = _fields(taken.note)
        process, host = [*owner, "unknown", "an unknown host"][:2]
        if not wait:
            raise ConfigurationError(f"output {final}: expected no other process to write it, found process {process} "
                                     f"on {host}, which has locked {path}")
        if owner and not is_logged:
            logger.warning("waiting for process %s on %s, which writes %s", process, host, final)
            is_logged = True
        stops.check()
        time.sleep(_PAUSE)


def _fields(note: bytes) -> list[str]:
    return note.decode(errors="replace").split()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_mapped(path: Path) -> None:
    """Remove a partial file or directory. On Windows, first clear frames of the current exception that map it."""
    try:
        remove(path)
    except PermissionError as error:
        exception = error.__context__
        while exception:
            traceback.clear_frames(exception.__traceback__)
            exception = exception.__context__
        remove(path)


def remove_partials(folder: Path) -> None:
    """Remove partial files that killed processes left in a directory; the caller holds its lock."""
    for path in folder.rglob("*.part"):
        if _PARTIAL.search(path.name):
            remove(path)


# ---- locks of the operating system -----------------------------------------------------------------------------------


class TakenError(Exception):
    """Another process holds a lock; `note` has the first bytes of its lock file."""

    def __init__(self, note: bytes):
        super().__init__("another process has the lock")
        self.note = note


def lock_file(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Open and lock the file at `path` for this process while the body runs, then remove it.

    `TakenError` if another process holds the lock. When a process is killed, the system releases its lock, and the file
    stays with its content. `OSError` if the file cannot be written or locked.
    """
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return _sqlite_lock(path)
    return _posix_lock(path)


@contextlib.contextmanager
def _posix_lock(path: Path) -> Iterator[IO[bytes]]:
    """A POSIX lock; unlike a lock of `flock`, forked workers do not inherit it. The file is removed while locked."""
    import fcntl

    owner = os.getpid()
    while True:
        with open(path, "a+b", buffering=0) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise TakenError(_first_bytes(file)) from None
            except OSError as error:
                raise _no_lock_support(path, error.strerror, error.errno) from error
            if not _is_at(file, path):  # the previous owner removed it
                continue
            try:
                yield file
            finally:
                if os.getpid() == owner:
                    path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def _sqlite_lock(path: Path) -> Iterator[IO[bytes]]:
    """A lock of SQLite on an empty file beside `path`: without `fcntl` (Windows) Python has no other such lock.

    Both files are closed before they are removed. A file that another process has open stays; that process removes it.
    """
    import sqlite3

    database = path.with_name(f"{path.name}.db")
    open(database, "ab").close()  # if this fails, the error names the file
    connection = sqlite3.connect(database, 0, isolation_level=None, check_same_thread=False)
    with contextlib.ExitStack() as closed, contextlib.closing(connection):
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")  # avoids a journal file
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise _no_lock_support(database, str(error)) from error
            raise TakenError(_first_bytes_of_file(path)) from None
        closed.callback(_remove_unless_open, database)
        try:
            with open(path, "a+b", buffering=0) as file:
                yield file
        finally:
            _remove_unless_open(path)


def _no_lock_support(path: Path, reason: str | None, number: int | None = None) -> OSError:
    return OSError(number, f"expected a file system with locks ({reason})", os.fspath(path))


def _is_at(file: IO[bytes], path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _first_bytes(file: IO[bytes]) -> bytes:
    """The first bytes of a file, at most 4096."""
    file.seek(0)
    return file.read(4096)


def _first_bytes_of_file(path: Path) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return _first_bytes(file)
    return b""


def _remove_unless_open(path: Path) -> None:
    with contextlib.suppress(PermissionError):
        path.unlink(missing_ok=True)
