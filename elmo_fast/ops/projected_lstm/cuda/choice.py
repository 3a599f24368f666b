"""Graph or persistent: which of its two paths the LSTM takes on a GPU, measured there at first use (docs/gpu.md)."""

import functools
import json
import logging
import math
import os
import statistics
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from elmo_fast.arguments import check_choice
from elmo_fast.environment import cache_directory, version
from elmo_fast.ops.projected_lstm.cuda.blocks import Operands

GRAPH, PERSISTENT = PATHS = "graph", "persistent"
VARIABLE = "ELMO_FAST_CUDA_LSTM"

_SECONDS, _MOST_TIMES = 0.2, 9  # that timing a class may take, after first runs that pack weights and load kernels
# classes of steps: all below this number, and how many are timed
_STEPS = {"less than 8 steps": (8, 4), "less than 64 steps": (64, 24), "64 steps and more": (math.inf, 64)}
_SLOTS = 8, 1024  # the smallest and the largest class
_MOST_ROWS = 8192  # of a timed run

logger = logging.getLogger(__name__)
_log_once = functools.cache(logger.info)


def shape_class(layer: Operands, slots: int, steps: int) -> tuple[str, int, int]:
    """The name of the class of calls that are alike; slots and steps of a timed run of it."""
    of_steps, timed = next((name, timed) for name, (below, timed) in _STEPS.items() if steps < below)
    slots = min(max(1 << (slots - 1).bit_length(), _SLOTS[0]), _SLOTS[1])
    operand = str(layer.dtype).removeprefix("torch.")
    return (f"{layer.dim} cells, {layer.projection} values, {operand}, {slots} slots, {of_steps}", slots,
            min(timed, _MOST_ROWS // slots))


@dataclass(frozen=True)
class Measured:
    """The median seconds of each path for a class."""

    graph: float
    persistent: float

    def __post_init__(self):
        if not (self.graph > 0 and self.persistent > 0):
            raise ValueError(f"graph, persistent: expected the seconds of each, got {self}")

    path = property(lambda self: PERSISTENT if self.persistent < self.graph else GRAPH)


def seconds(work: Callable[[], object]) -> float:
    """What `work` takes on the current stream, idle before: from the first queued to the last done."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.current_stream().synchronize()
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1000


def choose(shape: str, device: torch.device, why_not: Callable[[], str | None],
           measure: Callable[[], Measured | None]) -> str:
    """The path of calls of a class. `why_not` gives the reason against the persistent path.

    Raises `RuntimeError` when that path is forced and cannot run.
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
    return forced or _choices.path(machine(device), shape, measure)


def measure(run: Callable[[str], tuple[torch.Tensor, ...]], tolerance: float,
            why_not: Callable[[], str | None]) -> Measured | None:
    """Which of the paths that `run` takes by name is faster; None where the persistent one failed or differs."""
    differences = [((one - other).norm() / one.norm()).item() for one, other in zip(run(GRAPH), run(PERSISTENT))]
    if why_not():
        return None  # the launch was refused or gave up, which was warned of
    if not all(difference <= tolerance for difference in differences):  # NaN is not
        logger.warning("the persistent LSTM is not used for layers of this size: its outputs and states differ by %s "
                       "from those of the graph path, at most %g was expected", differences, tolerance)
        return None
    run(GRAPH)  # has its graphs captured
    taken = {path: [] for path in PATHS}
    while len(taken[GRAPH]) < _MOST_TIMES and sum(map(sum, taken.values())) < _SECONDS:
        for path in PATHS:
            taken[path].append(seconds(functools.partial(run, path)))
    return None if why_not() else Measured(**{path: statistics.median(times) for path, times in taken.items()})


@functools.cache
def machine(device: torch.device) -> str:
    """The GPU and the versions of what runs on it."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "elmo-fast"))
    of = torch.cuda.get_device_properties(device)
    return (f"{of.name} of {of.multi_processor_count} multiprocessors, driver {torch._C._cuda_getDriverVersion()}, "
            f"CUDA {torch.version.cuda}, {packages}")


class Choices:
    """What was measured, by machine and class: in memory, and in a file that is replaced as one.

    An entry lost when two processes write at once is measured again.
    """

    def __init__(self, file: Callable[[], Path]):
        self._file, self._lock = file, threading.Lock()
        self._known: dict[tuple[str, str], str] = {}

    def path(self, machine: str, shape: str, measure: Callable[[], Measured | None]) -> str:
        """The path for a class; what is in neither place is measured."""
        with self._lock:
            key = machine, shape
            if key not in self._known:
                found = self.read().get(machine, {}).get(shape)
                if found is None and (found := measure()):
                    self._record(machine, shape, found)
                self._known[key] = found.path if found else GRAPH
            return self._known[key]

    def read(self) -> dict[str, dict[str, Measured]]:
        """What the file holds, by machine and class; nothing where it cannot be read."""
        try:
            held = json.loads(self._file().read_text(encoding="utf-8"))
            return {name: {shape: Measured(**values) for shape, values in of.items()} for name, of in held.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _record(self, machine: str, shape: str, measured: Measured) -> None:
        """Add an entry to what the file holds by now."""
        file, held = self._file(), self.read()
        part = file.with_suffix(f".{os.getpid()}")
        held.setdefault(machine, {})[shape] = measured
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(held, default=asdict, indent=1), encoding="utf-8")
            os.replace(part, file)
        except OSError as error:
            logger.info("the measurements are not saved: %s", error)


_choices = Choices(lambda: cache_directory() / "cuda-lstm.json")


def recorded(device: torch.device) -> dict[str, Measured]:
    """What the user's cache holds for a device, by class."""
    return _choices.read().get(machine(device), {})
