"""The installation and the machine: extras, versions, the user's cache directory, processors and memory.

Imports no torch: the command's help reads it.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the import of an optional library: an `ImportError` in it names the extra that installs what is absent."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"a package is not there ({error}): install elmo-fast[{name}]") from error


def version(package: str) -> str:
    """Of an installed package."""
    import importlib.metadata  # milliseconds, which the command's help does not have

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cache_directory() -> Path:
    """For downloaded models and GPU measurements: `ELMO_FAST_CACHE`, or `elmo-fast` in the user's cache."""
    if chosen := os.environ.get("ELMO_FAST_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmo-fast"


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
