"""Files and directories that take their name only when they are whole."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike) -> Iterator[Path]:
    """A path beside `target` that becomes it when the body succeeds, and vanishes when it does not.

    The body makes a file or a directory there. A symbolic link is followed, an old file replaced; a directory
    that another process finished first is kept. The name is random: process ids repeat from container to
    container, and what a killed process left must stand in nobody's way.
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
    """Raise `OSError` when a file cannot come to be at `path`, before any work is done for it; `name` is what it is."""
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
