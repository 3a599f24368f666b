"""Graph or persistent: which of its two paths the LSTM takes on a GPU, measured there at first use.

For a class of shapes both paths run on the caller's weights and random operands, are compared, and timed. The faster is
kept in memory and in one file of the user's cache, by GPU, versions and class. `ELMO_FAST_CUDA_LSTM=graph|persistent`
forces one.
"""

import contextlib
import functools
import importlib.metadata
import json
import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from elmo_fast.ops.host_device import is_capturing
from elmo_fast.ops.user_cache import cache_directory

GRAPH, PERSISTENT = PATHS = "graph", "persistent"
VARIABLE = "ELMO_FAST_CUDA_LSTM"
TOLERANCES = {"float16": 3e-3, "bfloat16": 3e-2}  # relative Frobenius difference of the paths

_SECONDS, _MOST_TIMES = 0.2, 9  # that timing a class may take, after first runs that pack weights and load kernels
_SCHEMA = 1
_LEAST_SLOTS, _MOST_SLOTS = 8, 1024
_STEPS = ((8, 4), (64, 24), (math.inf, 64))  # each class: its steps lie below the first number, the second are timed
_MOST_ROWS = 8192  # of a timed run

logger = logging.getLogger(__name__)

Run = Callable[[str], tuple[torch.Tensor, ...]]  # runs the path named


@dataclass(frozen=True)
class ShapeClass:
    """Calls that are alike: D cells, P projected values, the operand type, slots rounded up, steps below `below`."""

    dim: int
    projection: int
    operand: str
    slots: int
    below: float

    @classmethod
    def of(cls, dim: int, projection: int, dtype: torch.dtype, slots: int, steps: int) -> "ShapeClass":
        rounded = min(max(1 << (slots - 1).bit_length(), _LEAST_SLOTS), _MOST_SLOTS)
        return cls(dim, projection, str(dtype).removeprefix("torch."), rounded,
                   next(below for below, _ in _STEPS if steps < below))

    @property
    def trial_steps(self) -> int:
        """Steps of a timed run."""
        return max(1, min(dict(_STEPS)[self.below], _MOST_ROWS // self.slots))

    def __str__(self) -> str:
        steps = "64 steps and more" if self.below == math.inf else f"less than {self.below} steps"
        return f"{self.dim} cells, {self.projection} values, {self.operand}, {self.slots} slots, {steps}"


@dataclass(frozen=True)
class Measured:
    """The path for a class, and the median seconds of each."""

    path: str
    graph: float
    persistent: float

    @classmethod
    def from_dict(cls, values: object) -> "Measured | None":
        """An entry of the file; None for anything else."""
        if not isinstance(values, dict) or values.keys() != {"path", *PATHS} or values["path"] not in PATHS:
            return None
        seconds = [values[path] for path in PATHS]
        return cls(**values) if all(isinstance(each, float) and each > 0 for each in seconds) else None


class CudaClock:
    """Times work queued on the current stream of a device."""

    def __init__(self, device: torch.device):
        self._device = device

    def now(self) -> float:
        """Seconds of the host's clock."""
        return time.perf_counter()

    def seconds(self, work: Callable[[], object]) -> float:
        """Seconds from the first queued to the last done, on a device that was idle."""
        stream = torch.cuda.current_stream(self._device)
        stream.synchronize()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record(stream)
        work()
        ended.record(stream)
        ended.synchronize()
        return began.elapsed_time(ended) / 1000


def choose(shape: ShapeClass, precision: str, device: torch.device, why_not: Callable[[], str | None],
           trial: Callable[[], Run]) -> str:
    """The path for calls of a class. `why_not` says what speaks against the persistent one, `trial` makes what is timed.

    Raises `RuntimeError` when that path is forced and cannot run.
    """
    forced = forced_path()
    if forced == GRAPH:
        return GRAPH
    reason = why_not()
    if forced == PERSISTENT and reason:
        raise RuntimeError(f"{VARIABLE}: the persistent path was asked for and does not run here: {reason}")
    if reason:
        _log_once(reason)
    if reason or forced or is_capturing(device):
        return forced or GRAPH
    return _choices.path(machine(device), f"{shape}, {precision}", lambda: measure(
        trial(), clock_of(device), TOLERANCES[shape.operand], why_not))


def forced_path() -> str | None:
    """The path that the environment forces."""
    forced = os.environ.get(VARIABLE) or None
    if forced not in (None, *PATHS):
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(PATHS)}, got {forced!r}")
    return forced


@functools.cache
def _log_once(reason: str) -> None:
    logger.info("projected_lstm: the persistent path is passed over: %s", reason)


def clock_of(device: torch.device) -> CudaClock:
    """What times work on `device`."""
    return CudaClock(device)


def measure(run: Run, clock: CudaClock, tolerance: float, why_not: Callable[[], str | None]) -> Measured | None:
    """Which path is faster; None where the persistent one failed or differs from the other."""
    difference = _difference(run(GRAPH), run(PERSISTENT))
    if why_not():
        return None  # the launch was refused or gave up, which was warned of
    if not difference <= tolerance:  # NaN is not
        logger.warning("the persistent LSTM is not used for layers of this size: its results differ by %.1e from those of "
                       "the graph path, at most %g was expected", difference, tolerance)
        return None
    run(GRAPH)  # has its graphs captured
    began, seconds = clock.now(), {path: [] for path in PATHS}
    while not seconds[GRAPH] or (len(seconds[GRAPH]) < _MOST_TIMES and clock.now() - began < _SECONDS):
        for path in PATHS:
            seconds[path].append(clock.seconds(lambda: run(path)))
    if why_not():
        return None
    medians = {path: statistics.median(each) for path, each in seconds.items()}
    return Measured(min(PATHS, key=medians.get), **medians)


def _difference(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> float:
    """The largest relative Frobenius difference; NaN where there is one."""
    return max(((one - other).norm() / other.norm() for one, other in zip(found, expected)),
               key=lambda each: math.inf if each.isnan() else float(each)).item()


@functools.cache
def machine(device: torch.device) -> str:
    """The GPU and the versions of what runs on it."""
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "triton", "elmo-fast"))
    if device.type != "cuda":
        return f"{device.type}, {packages}"
    of = torch.cuda.get_device_properties(device)
    return (f"{of.name} of {of.multi_processor_count} multiprocessors, driver {torch._C._cuda_getDriverVersion()}, "
            f"CUDA {torch.version.cuda}, {packages}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


class Choices:
    """What was measured, by machine and class: in memory, and in a file that several processes may write."""

    def __init__(self, file: Callable[[], Path]):
        self._file, self._lock = file, threading.RLock()
        self._known: dict[tuple[str, str], Measured | None] = {}

    def path(self, machine: str, shape: str, measure: Callable[[], Measured | None]) -> str:
        """The path for a class; what is in neither place is measured."""
        with self._lock:
            key = machine, shape
            if key not in self._known:
                self._known[key] = self.recorded(machine).get(shape) or measure()
                if self._known[key] is not None:
                    self._record(machine, shape, self._known[key])
            return GRAPH if self._known[key] is None else self._known[key].path

    def recorded(self, machine: str) -> dict[str, Measured]:
        """What the file holds for a machine, by class."""
        entries = self._read().get(machine, {})
        found = {shape: Measured.from_dict(each) for shape, each in entries.items()} if isinstance(entries, dict) else {}
        return {shape: each for shape, each in found.items() if each is not None}

    def _read(self) -> dict:
        try:
            held = json.loads(self._file().read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        is_ours = isinstance(held, dict) and held.get("schema") == _SCHEMA and isinstance(held.get("machines"), dict)
        return held["machines"] if is_ours else {}

    def _record(self, machine: str, shape: str, measured: Measured) -> None:
        """Add an entry to what the file holds by now, atomically; without it the next process measures again."""
        file = self._file()
        part = file.with_suffix(f".{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with _locked(file.with_suffix(".lock")):
                machines = self._read()
                kept = machines.get(machine)
                machines[machine] = {**(kept if isinstance(kept, dict) else {}), shape: asdict(measured)}
                part.write_text(json.dumps({"schema": _SCHEMA, "machines": machines}, indent=1), encoding="utf-8")
                os.replace(part, file)
        except OSError as error:
            logger.info("what was measured is not kept: %s", error)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Held by one process at a time, where the system knows such locks."""
    try:
        import fcntl
    except ImportError:
        fcntl = None
    with open(file, "a") as held:
        if fcntl:
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


_choices = Choices(lambda: cache_directory() / "cuda-lstm.json")


def recorded(device: torch.device) -> dict[str, Measured]:
    """What the user's cache holds for a device, by class."""
    return _choices.recorded(machine(device))
