"""Locks: a file or directory is written by one process at a time, and by one thread of it.

On `TARGET.lock` is the lock of the operating system, which frees it when a process ends in any way.
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

_PAUSE = 0.1  # seconds between two attempts to get a lock

logger = logging.getLogger(__name__)


class _Owner(NamedTuple):
    """Who has a lock."""

    process: int
    thread: int


_PARTIAL = re.compile(r"\.[0-9a-f]{8}\.part")
_owners: dict[Path, _Owner] = {}  # of the locks of this process, which the system counts by processes, not by threads


@contextlib.contextmanager
def locked(target: str | os.PathLike, wait: bool = False) -> Iterator[Path]:
    """The right to write `target`, a file or a directory, while the body runs: `ConfigurationError` if it is taken.

    With `wait` another process or thread that has it is waited for, and a line of the log names the process.

    Yields a path for a partial file. The lock is on the file `TARGET.lock`, which holds the process, its host and the
    partial file's name: what is left of that file is removed at the end, or after a kill by the next process. The lock
    is not taken twice: its path is passed on. The files of a directory that the thread has locked need no lock of their
    own. In the body stops are deferred (see `stops`). Readers need no lock.
    """
    final = Path(os.path.realpath(local_path(target)))
    partial = final.with_name(f"{final.name}.{secrets.token_hex(4)}.part")
    mine = _Owner(os.getpid(), threading.get_ident())
    while (owner := _owners.setdefault(final, mine)).thread != mine.thread and owner.process == mine.process and wait:
        stops.check()
        time.sleep(_PAUSE)
    if owner is not mine and owner.process == mine.process:
        raise ConfigurationError(f"output {final}: expected no other writer, found one in this process")
    _owners[final] = mine  # also in place of what a fork copied from its parent
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
    """The lock that a caller has taken, by the path for its partial file, or else one for the body."""
    return contextlib.nullcontext(part) if part else locked(target)


@contextlib.contextmanager
def _lock_file(final: Path, partial: Path, wait: bool) -> Iterator[None]:
    """The lock file of an output, there and locked while the body runs."""
    with stops.stoppable():
        stops.check()
        with _lock(final, partial, wait):
            yield


def _lock(final: Path, partial: Path, wait: bool) -> contextlib.ExitStack:
    """Lock it, remove what a killed owner left, and write who has it now; the stack that is returned releases it."""
    with contextlib.ExitStack() as stack:
        file = _take(stack, final, wait)
        content = _words(_start_of(file))
        if len(content) == 3 and _PARTIAL.fullmatch(content[2]):
            for folder in filter(Path.is_dir, (final.parent, final)):
                remove(folder / f"{final.name}{content[2]}")
        try:
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()} {partial.name.removeprefix(final.name)}\n".encode())
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


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_mapped(path: Path) -> None:
    """Remove a partial file or directory, though frames of an error in flight hold maps of it, which Windows keeps."""
    try:
        remove(path)
    except PermissionError as error:
        in_flight = error.__context__
        while in_flight:
            traceback.clear_frames(in_flight.__traceback__)
            in_flight = in_flight.__context__
        remove(path)


def remove_partials(folder: Path) -> None:
    """Remove what killed processes left in a directory, which must be locked."""
    for path in folder.rglob("*.part"):
        if _PARTIAL.search(path.name):
            remove(path)


# ---- the lock of the operating system --------------------------------------------------------------------------------


class TakenError(Exception):
    """Another process has a lock; `note` is the start of what it wrote into the lock file."""

    def __init__(self, note: bytes):
        super().__init__("another process has the lock")
        self.note = note


def lock_file(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """The file at `path`, open and locked for this process while the body runs, and then removed.

    `TakenError` while another process has the lock; the system releases it when a process ends in any way, and the file
    then stays with what was written into it. `OSError` where no file can be written or locked.
    """
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return _beside_a_database(path)
    return _posix_lock(path)


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
                raise TakenError(_start_of(file)) from None
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


def _start_of(file: IO[bytes]) -> bytes:
    """The first bytes of a file, at most 4096."""
    file.seek(0)
    return file.read(4096)


def _start_of_file(path: Path) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return _start_of(file)
    return b""


def _remove_unless_open(path: Path) -> None:
    with contextlib.suppress(PermissionError):
        path.unlink(missing_ok=True)
