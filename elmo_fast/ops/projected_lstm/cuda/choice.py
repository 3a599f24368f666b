"""Selects the LSTM's path on a GPU, graph or persistent, by measuring both (docs/gpu.md)."""

import functools
import json
import logging
import math
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from elmo_fast.arguments import check_choice
from elmo_fast.environment import cache_directory, version
from elmo_fast.ops.backend import why_no_triton
from elmo_fast.ops.projected_lstm.cuda.blocks import Operands

GRAPH, PERSISTENT = PATHS = "graph", "persistent"
VARIABLE = "ELMO_FAST_CUDA_LSTM"

_SECONDS, _MOST_TIMES = 0.2, 9  # limits of timing a class, after first runs that pack weights and load kernels
_APART = 10.0  # seconds between two measurements of a class
# name of a class of steps -> (upper bound, excluded; steps of a timed run)
_STEPS = {"less than 8 steps": (8, 4), "less than 64 steps": (64, 24), "64 steps and more": (math.inf, 64)}
_SLOTS = 8, 1024  # the smallest and the largest class
_MOST_ROWS = 8192  # most packed rows of a timed run

logger = logging.getLogger(__name__)
_log_once = functools.cache(logger.info)


def shape_class(layer: Operands, slots: int, steps: int) -> tuple[str, int, int]:
    """The name of a call's class, whose calls share a path, and the slots and steps of its timed runs."""
    steps_class, timed = next((name, timed) for name, (below, timed) in _STEPS.items() if steps < below)
    slots = min(max(1 << (slots - 1).bit_length(), _SLOTS[0]), _SLOTS[1])
    operand = str(layer.dtype).removeprefix("torch.")
    return (f"{layer.dim} cells, {layer.projection} values, {operand}, {slots} slots, {steps_class}", slots,
            min(timed, _MOST_ROWS // slots))


def classes(most_slots: int) -> Iterator[tuple[int, int]]:
    """Slots and steps of a call of every class up to that of `most_slots` slots."""
    slots = _SLOTS[0]
    while slots < 2 * min(most_slots, _SLOTS[1]):
        yield from ((slots, timed) for _, timed in _STEPS.values())
        slots *= 2


@dataclass(frozen=True)
class Measured:
    """The median time of both paths for a class, in seconds."""

    graph: float
    persistent: float

    def __post_init__(self):
        if not (self.graph > 0 and self.persistent > 0):
            raise ValueError(f"graph, persistent: expected seconds above 0, got {self}")

    path = property(lambda self: PERSISTENT if self.persistent < self.graph else GRAPH)


def seconds(work: Callable[[], object]) -> float:
    """Time `work` in seconds on the current stream, which is idle before, from its first operation to its last."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.current_stream().synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def choose(shape: str, device: torch.device, why_not: Callable[[], str | None],
           measure: Callable[[], Measured | None]) -> str:
    """Choose the path for calls of a class. `why_not` returns the reason against the persistent path, or None.

    Raises `RuntimeError` if the persistent path is forced and cannot run.
    """
    forced = os.environ.get(VARIABLE)
    if forced and check_choice(VARIABLE, forced, PATHS) == GRAPH:
        return GRAPH
    reason = why_not()
    if reason and forced:
        raise RuntimeError(f"{VARIABLE}: the persistent path was asked for and does not run here: {reason}")
    if reason:
        _log_once("projected_lstm: the persistent path is passed over: %s", reason)
        return GRAPH
    return forced or _choices.path(device, machine(device), shape, measure)


def measure(run: Callable[[str], tuple[torch.Tensor, ...]], tolerance: float,
            why_not: Callable[[], str | None]) -> Measured | None:
    """Time both paths of `run`, which takes a path's name; None if the persistent path fails or its results differ."""
    differences = [((one - other).norm() / one.norm()).item() for one, other in zip(run(GRAPH), run(PERSISTENT))]
    if why_not():
        return None  # the launch was refused or gave up; `persistent.Watch` has warned
    if not all(difference <= tolerance for difference in differences):  # also for NaN
        logger.warning("the persistent LSTM is not used for layers of this size: its outputs and states differ from "
                       "those of the graph path by %s, expected at most %g", differences, tolerance)
        return None
    run(GRAPH)  # captures the graphs
    times = {path: [] for path in PATHS}
    while len(times[GRAPH]) < _MOST_TIMES and sum(map(sum, times.values())) < _SECONDS:
        for path in PATHS:
            times[path].append(seconds(functools.partial(run, path)))
    return None if why_not() else Measured(**{path: statistics.median(values) for path, values in times.items()})


def machine(device: torch.device) -> str:
    """Describe the GPU, the versions of driver, CUDA and packages, and what the small kernels are."""
    return _versions(device) + (", without Triton" if why_no_triton(device) else "")


@functools.cache
def _versions(device: torch.device) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "elmo-fast"))
    gpu = torch.cuda.get_device_properties(device)
    return (f"{gpu.name} of {gpu.multi_processor_count} multiprocessors, driver {torch._C._cuda_getDriverVersion()}, "
            f"CUDA {torch.version.cuda}, {packages}")


def is_settled(found: list[Measured]) -> bool:
    """Whether the last two measurements of a class agree."""
    return len(found) > 1 and found[-1].path == found[-2].path


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

    def path(self, device: torch.device, machine: str, shape: str, measure: Callable[[], Measured | None]) -> str:
        """The path for a class, from memory or the file, else measured while the device's other classes wait."""
        key = device, machine, shape
        if (known := self._known.get(key)) is None or known[1] < time.monotonic():
            with self._lock:
                measuring = self._measuring[device]
            with measuring:
                if self._known.get(key) is known:
                    self._known[key] = known = self._settle(known and known[0], machine, shape, measure)
                else:
                    known = self._known[key]
        return known[0][-1].path if known[0] else GRAPH

    def _settle(self, found: list[Measured] | None, machine: str, shape: str,
                measure: Callable[[], Measured | None]) -> tuple[list[Measured], float]:
        """The measurements of a class, one more unless they agree, and the time when to look at them again."""
        found = found or self.read().get(machine, {}).get(shape, [])
        if not is_settled(found):
            measured = measure()
            found = [*found, measured][-2:] if measured else []
            if measured:
                self._record(machine, shape, found)
        return found, time.monotonic() + _APART if found and not is_settled(found) else math.inf

    def read(self) -> dict[str, dict[str, list[Measured]]]:
        """Read the file's measurements by machine and class; empty if it cannot be read."""
        try:
            content = json.loads(self._file().read_text(encoding="utf-8"))
            return {machine: {shape: [Measured(**values) for values in found] for shape, found in classes.items()}
                    for machine, classes in content.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _record(self, machine: str, shape: str, found: list[Measured]) -> None:
        """Set an entry of the file."""
        file = self._file()
        part = file.with_suffix(f".{os.getpid()}")
        with self._lock:
            content = self.read()
            content.setdefault(machine, {})[shape] = found
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                part.write_text(json.dumps(content, default=asdict, indent=1), encoding="utf-8")
                os.replace(part, file)
            except OSError as error:
                logger.info("the measurements are not saved: %s", error)


_choices = Choices(lambda: cache_directory() / "cuda-lstm.json")


def recorded(device: torch.device) -> dict[str, list[Measured]]:
    """The cached measurements for a device, by class; the last two."""
    return _choices.read().get(machine(device), {})
