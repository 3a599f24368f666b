"""Selects the LSTM's path on a GPU, graph or persistent, by measuring both (docs/gpu.md)."""

import functools
import logging
import math
import os
from collections.abc import Callable, Iterator

import torch

from elmo_fast.arguments import check_choice
from elmo_fast.ops import choices
from elmo_fast.ops.choices import Measured
from elmo_fast.ops.projected_lstm.cuda.blocks import Operands

GRAPH, PERSISTENT = PATHS = "graph", "persistent"
VARIABLE = "ELMO_FAST_CUDA_LSTM"

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
    return forced or choices.choose(device, f"LSTM of {shape}", measure) or GRAPH


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
    times = choices.times_of({path: functools.partial(run, path) for path in PATHS})
    return None if why_not() else times
