"""The installation and the machine: extras, versions, the user's cache directory, processors and memory.

Imports no torch: the command's help reads it.
"""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from elmo_fast.errors import ConfigurationError

VERSION = "0.1.0"
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Wrap the import of an optional library: an `ImportError` then says how to install the library."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"a package is missing ({error}): {install_line(name)}") from error


def install_line(extra: str) -> str:
    """The command that adds the libraries of an extra to this installation: pip leaves elmo-fast itself as it is."""
    return f'pip install "elmo-fast[{extra}]"'


def version(package: str) -> str:
    """The version of an installed package, or `not installed`."""
    import importlib.metadata  # takes milliseconds, and the command's help must start fast

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def may_have_gpu() -> bool:
    """Whether PyTorch may see a GPU: it is installed, is no build for CPUs, and there is a driver. Imports no torch."""
    build = version("torch")
    if build == "not installed" or build.endswith("+cpu"):
        return False
    if "rocm" in build or sys.platform not in _DRIVERS:
        return True
    import ctypes

    try:
        ctypes.CDLL(_DRIVERS[sys.platform])
    except OSError:
        return False
    return True


def is_set(name: str) -> bool:
    """Whether an environment variable is `1`; `ConfigurationError` for values other than `0`, `1` and nothing."""
    value = os.environ.get(name) or "0"
    if value not in ("0", "1"):
        raise ConfigurationError(f"{name}: expected 0 or 1, got {value!r:.80}")
    return value == "1"


def cache_directory() -> Path:
    """Directory of downloaded models: `ELMO_FAST_CACHE`, or `elmo-fast` in the user's cache.

    Raises `ConfigurationError` where the system knows no home directory and no variable names the cache.
    """
    folder = os.environ.get("ELMO_FAST_CACHE")
    try:
        if folder:
            return Path(folder).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmo-fast"
    except RuntimeError as error:
        raise ConfigurationError("cache of models: expected ELMO_FAST_CACHE to name a directory, or a user with a home "
                                 f"directory, got neither ({error})") from None


def cores() -> int:
    """Number of processors that this process may use: its affinity, limited by its CPU quota (rounded down)."""
    processors, quota = affinity(), _quota_at_start()
    return processors if quota is None else max(1, min(processors, int(quota)))


def affinity() -> int:
    """Number of processors that this process may run on; all of the machine's where the system does not report it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: str | os.PathLike = "/") -> float | None:
    """CPU quota of this process in processors: the lowest quota of its Linux control groups (v1, v2) and their parents.

    None without a quota, and on other systems. `root` replaces the root directory.
    """
    groups = _control_groups(Path(root), "cpu")
    return min((quota for folder in groups if (quota := _quota(folder))), default=None)


_quota_at_start = functools.cache(cpu_quota)
# A line of `mountinfo`: the mounted directory, the mount point, the file system's type and its options.
_MOUNT = re.compile(r"\S+ \S+ \S+ (?P<top>/\S*) (?P<place>/\S*) .* - (?P<kind>\S+) \S+ (?P<options>\S+)")


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's control groups, and of their parents, that may limit `cpu` or `memory`."""
    try:
        groups, mounts = ((root / "proc/self" / name).read_text("utf-8", "surrogateescape").splitlines()
                          for name in ("cgroup", "mountinfo"))
    except OSError:
        return
    for mount in mounts:
        match = _MOUNT.match(mount)
        for _, controllers, group in (line.split(":", 2) for line in groups if match and line.count(":") >= 2):
            has_it = controller in controllers.split(",") and controller in match["options"].split(",")
            if (match["kind"] == "cgroup" and has_it) or (match["kind"] == "cgroup2" and not controllers):
                mounted, top = root / match["place"].strip("/"), match["top"]
                folder = mounted / os.path.relpath(group, top) if Path(group).is_relative_to(top) else mounted
                yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(mounted))


def _quota(folder: Path) -> float | None:
    """The quota of a control group in processors: CPU microseconds per period, divided by the period's length."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            return int(quota) / int(period) if quota.isdigit() and int(period) else None
    return None


def memory_size(root: str | os.PathLike = "/") -> int | None:
    """Bytes of memory for this process: the machine's, or the lowest limit of its Linux control groups (v1, v2).

    None where the system does not report it. `root` replaces the root directory.
    """
    if not hasattr(os, "sysconf"):
        return None
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _control_groups(Path(root), "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
                sizes.append(int((folder / name).read_text()))
    return min(sizes)


def peak_memory() -> int | None:
    """Peak memory of this process in bytes; None where the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1 << 10)
