"""Locks: only one process at a time, and only one of its threads, writes a file or directory.

The operating system locks `TARGET.lock`, an empty file, and releases it whenever the process ends, also by a kill.
"""

import contextlib
import glob
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from elmo_fast.arguments import local_path
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops

_PAUSE = 0.1  # seconds between attempts to take a lock
_PARTIAL = re.compile(r"\.elmo-[0-9a-f]{8}\.part")
_GUARDED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # flags that Windows lacks
_START = 16  # bytes by which a file of ours is told from another one
_held: set[Path] = set()  # locked by this process: files in such a directory need no lock of their own

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(target: str | os.PathLike, wait: bool = False) -> Iterator[Path]:
    """Hold the lock on writing `target`, a file or a directory, in the body; `ConfigurationError` if it is taken.

    With `wait`, wait for the process or thread that holds it.

    Yields a path for a partial file or directory. It is removed at the end, or, after a kill, by the next process that
    takes the lock. The lock is not reentrant: pass the partial path on (see `lock_of`). Files in a locked directory
    need no lock file. Stops are deferred in the body (see `stops`). Readers need no lock.
    """
    final = Path(os.path.realpath(local_path(target)))
    partial, process = final.with_name(f"{final.name}.elmo-{secrets.token_hex(4)}.part"), os.getpid()
    own_file(partial, f"output {final}", "a partial file")  # a name may be too long, which is said before any work
    is_inside = not _held.isdisjoint(final.parents)
    with contextlib.nullcontext() if is_inside else _lock_file(final, wait):
        _held.add(final)
        try:
            yield partial
        finally:
            if os.getpid() == process:
                _held.discard(final)
                remove(partial)


def lock_of(target: str | os.PathLike, part: Path | None) -> contextlib.AbstractContextManager[Path]:
    """`part`, the partial path of a lock that the caller holds, or, if None, a lock held in the body."""
    return contextlib.nullcontext(part) if part else locked(target)


@contextlib.contextmanager
def _lock_file(final: Path, wait: bool) -> Iterator[None]:
    """Hold the lock file of an output while the body runs, without the partial files of killed processes."""
    path, process = final.with_name(f"{final.name}.lock"), os.getpid()
    with stops.stoppable():
        stops.check()
        lock = _acquire(path, final, wait)
        try:
            for folder in filter(Path.is_dir, (final.parent, final)):
                for partial in folder.glob(f"{glob.escape(final.name)}.*.part"):
                    if _PARTIAL.fullmatch(partial.name.removeprefix(final.name)):
                        _remove_own(partial)
            yield
        finally:
            if os.getpid() == process:
                # Remove the file while locked: a process that has opened it notices. Windows removes it at the release.
                with contextlib.suppress(PermissionError):
                    path.unlink(missing_ok=True)
                lock.release()


def _acquire(path: Path, final: Path, wait: bool) -> filelock.BaseFileLock:
    own_file(path, f"output {final}", "a lock of elmo-fast", lambda start, names: not start and names == 1)
    lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        if not wait:
            raise ConfigurationError(f"output {final}: expected no other process or thread to write it, found one "
                                     f"that has locked {path}") from None
        logger.warning("waiting for another process or thread, which writes %s", final)
        stops.interruptible(lock.acquire)(poll_interval=_PAUSE)
    except OSError as error:
        if error.filename is None:  # an error of locking, not of opening
            raise OSError(error.errno, f"expected a file system with locks ({error.strerror})", os.fspath(path)
                          ) from error
        raise
    return lock


def own_file(path: Path, where: str, expected: str, fits: Callable[[bytes, int], bool] = lambda *_: True) -> bool:
    """Whether a file of ours has a name beside or in an output; False where nothing has it.

    Anything but a regular file whose first bytes and number of hard links `fits` accepts is a `ConfigurationError`.
    Links are not followed, and pipes not waited for.
    """
    try:
        with open(path, "rb", 0, opener=lambda name, flags: os.open(name, flags | _GUARDED)) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and fits(file.read(min(_START, status.st_size)), status.st_nlink):
                return True
    except FileNotFoundError:
        return False
    except OSError:  # a link, a directory, a socket, or a file that may not be read
        if not os.path.lexists(path):
            raise
    raise ConfigurationError(f"{where}: expected nothing or {expected} at {path}, found something else; move it away")


def _remove_own(partial: Path) -> None:
    """Remove what a killed process left: a file or directory of this user, never a link or a pipe."""
    status = partial.lstat()
    is_owned = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    if is_owned and (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        remove(partial)


def remove(path: Path) -> None:
    """Remove a file or a directory, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Remove partial files that killed processes left in a directory; the caller holds its lock."""
    for path in folder.rglob("*.part"):
        if _PARTIAL.search(path.name):
            _remove_own(path)
