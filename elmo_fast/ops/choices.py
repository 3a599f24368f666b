"""Chooses between ways to compute the same on a GPU, by measuring them (docs/gpu.md)."""

import functools
import json
import logging
import math
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from elmo_fast.environment import cache_directory, version
from elmo_fast.ops.backend import why_no_triton

_SECONDS, _MOST_TIMES = 0.2, 9  # limits of timing, after first runs that pack weights and load kernels
_APART = 10.0  # seconds between two measurements of a class

Measured = dict[str, float]  # the median seconds of every way, by name

logger = logging.getLogger(__name__)


def fastest(measured: Measured) -> str:
    """The fastest way; of equal ones the first."""
    return min(measured, key=measured.__getitem__)


def is_settled(found: list[Measured]) -> bool:
    """Whether the last two measurements of a class agree."""
    return len(found) > 1 and fastest(found[-1]) == fastest(found[-2])


def times_of(ways: Mapping[str, Callable[[], object]]) -> Measured:
    """Time every way by turns on the current stream."""
    times = {name: [] for name in ways}
    while len(next(iter(times.values()))) < _MOST_TIMES and sum(map(sum, times.values())) < _SECONDS:
        for name, work in ways.items():
            times[name].append(seconds(work))
    return {name: statistics.median(values) for name, values in times.items()}


def seconds(work: Callable[[], object]) -> float:
    """Time `work` in seconds on the current stream, which is idle before, from its first operation to its last."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.current_stream().synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def machine(device: torch.device) -> str:
    """Describe the GPU, the versions of driver, CUDA and packages, and what the small kernels are."""
    return _versions(device) + (", without Triton" if why_no_triton(device) else "")


@functools.cache
def _versions(device: torch.device) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "elmo-fast"))
    gpu = torch.cuda.get_device_properties(device)
    return (f"{gpu.name} of {gpu.multi_processor_count} multiprocessors, driver {torch._C._cuda_getDriverVersion()}, "
            f"CUDA {torch.version.cuda}, {packages}")


class Choices:
    """Measurements by machine and class, in memory and in a file that is replaced atomically.

    The GPU may have been busy: a class is measured again, in another process or `_APART` seconds later, until two
    measurements in a row agree; meanwhile the last one counts. If two processes write at once, an entry may be lost; it
    is measured again.
    """

    def __init__(self, file: Callable[[], Path]):
        self._file, self._lock = file, threading.Lock()
        self._measuring: dict[torch.device, threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[tuple[torch.device, str, str], tuple[list[Measured], float]] = {}

    def choose(self, device: torch.device, machine: str, name: str,
               measure: Callable[[], Measured | None] | None) -> str | None:
        """The fastest way for a class, from memory or the file, else measured while the device's other classes wait.

        None if `measure` returned None, and without `measure` for a class that is not known.
        """
        key = device, machine, name
        known = self._known.get(key)
        if measure and (known is None or known[1] < time.monotonic()):
            with self._lock:
                measuring = self._measuring[device]
            with measuring:
                if self._known.get(key) is known:
                    self._known[key] = known = self._settle(known and known[0], machine, name, measure)
                else:
                    known = self._known[key]
        return fastest(known[0][-1]) if known and known[0] else None

    def _settle(self, found: list[Measured] | None, machine: str, name: str,
                measure: Callable[[], Measured | None]) -> tuple[list[Measured], float]:
        """The measurements of a class, one more unless they agree, and the time when to look at them again."""
        found = found or self.read().get(machine, {}).get(name, [])
        if not is_settled(found):
            measured = measure()
            found = [*found, measured][-2:] if measured else []
            if measured:
                self._record(machine, name, found)
        return found, time.monotonic() + _APART if found and not is_settled(found) else math.inf

    def read(self) -> dict[str, dict[str, list[Measured]]]:
        """Read the file's measurements by machine and class; empty if it cannot be read."""
        try:
            content = json.loads(self._file().read_text(encoding="utf-8"))
            return {machine: {name: list(map(_checked, found)) for name, found in classes.items()}
                    for machine, classes in content.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _record(self, machine: str, name: str, found: list[Measured]) -> None:
        """Set an entry of the file."""
        file = self._file()
        part = file.with_suffix(f".{os.getpid()}")
        with self._lock:
            content = self.read()
            content.setdefault(machine, {})[name] = found
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                part.write_text(json.dumps(content, indent=1), encoding="utf-8")
                os.replace(part, file)
            except OSError as error:
                logger.info("the measurements are not saved: %s", error)


def _checked(measured: object) -> Measured:
    """A measurement of the file; `TypeError` or `ValueError` if it is damaged."""
    found = {str(name): float(value) for name, value in dict(measured).items()}
    if len(found) < 2 or not all(value > 0 for value in found.values()):
        raise ValueError(f"expected seconds above 0 of two ways, got {measured}")
    return found


_choices = Choices(lambda: cache_directory() / "gpu-choices.json")


def choose(device: torch.device, name: str, measure: Callable[[], Measured | None] | None) -> str | None:
    """See `Choices.choose`."""
    return _choices.choose(device, machine(device), name, measure)


def recorded(device: torch.device) -> dict[str, list[Measured]]:
    """The cached measurements for a device, by class; the last two."""
    return _choices.read().get(machine(device), {})
