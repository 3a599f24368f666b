"""The installation and the machine: extras, versions, the user's cache directory, processors and memory.

Imports no torch: the command's help reads it.
"""

import contextlib
import functools
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
    """Processors that this process may use: those it may run on, and no more than its quota of time, rounded down."""
    return max(1, min(affinity(), int(_quota_at_start() or affinity())))


def affinity() -> int:
    """Processors that this process may run on, or those of the machine where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: str | os.PathLike = "/") -> float | None:
    """Processors' worth of time that Linux's control groups (v1, v2) allow this process, the groups above included.

    None without a quota, and on other systems. `root` stands for the root directory.
    """
    return min((quota for folder in _control_groups(Path(root)) if (quota := _quota(folder))), default=None)


_quota_at_start = functools.cache(cpu_quota)


def _control_groups(root: Path) -> Iterator[Path]:
    """Directories of this process's control groups, and of those above them, that may have a quota of time."""
    try:
        groups, mounts = ((root / "proc/self" / name).read_text().splitlines() for name in ("cgroup", "mountinfo"))
    except OSError:
        return
    for mount in mounts:
        (*_, top, place), (kind, _, options) = (half.split(" ") for half in _halves(mount))
        for _, controllers, group in (line.split(":", 2) for line in groups):
            of_time = "cpu" in controllers.split(",") and "cpu" in options.split(",")
            if (kind == "cgroup" and of_time) or (kind == "cgroup2" and not controllers):
                mounted = root / place.strip("/")
                folder = mounted / os.path.relpath(group, top) if Path(group).is_relative_to(top) else mounted
                yield from (above for above in (folder, *folder.parents) if above.is_relative_to(mounted))


def _halves(mount: str) -> tuple[str, str]:
    """A line of `mountinfo`: up to the mounted directory and its place; type, source and options."""
    before, _, after = mount.partition(" - ")
    return " ".join(before.split(" ")[:5]), " ".join(after.split(" ")[:3])


def _quota(folder: Path) -> float | None:
    """The quota of one control group: microseconds of processors in a period, by its length."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            return int(quota) / int(period) if quota.isdigit() and int(period) else None
    return None


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
