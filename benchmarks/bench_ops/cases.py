"""What the benchmarks of single ops share: their cases, the text they read, and a yardstick that takes turns.

pytest-benchmark runs case after case, so that times of two cases are minutes apart. A case therefore times a
yardstick of its own between its rounds; `extra_info` has the ratio, which is the figure to compare.
"""

import functools
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmarks import agreement, common, models
from elmo_fast.engine.backend import native_module
from elmo_fast.text import characters
from elmo_fast.text.batching import number_tokens

SIZES = ("small", "medium", "original")
BATCHES = (1, 8, 64, 256)
SEED = 0
# Of a session: its rows, why cases have none, when it began.
ROWS, NOT_TIMED, BEGAN = pytest.StashKey[list](), pytest.StashKey[dict](), pytest.StashKey[float]()


def variants(precisions=("highest",)) -> list:
    """pytest parameters (backend, precision): plain torch has one precision on the CPU, the engine all of them."""
    pairs = [("reference", "highest"), ("torch", "highest"), *(("native", precision) for precision in precisions)]
    return [pytest.param(*pair, id="-".join(pair)) for pair in pairs]


def batches() -> list:
    return [pytest.param(size, id=f"b{size}") for size in BATCHES]


def skip_absent(backend: str, precision: str, device: str = "cpu") -> None:
    if backend == "native" and device == "cpu" and native_module()[0] is None:
        pytest.skip(native_module()[1])
    if absent := models.absent_precisions(device).get(precision):
        pytest.skip(f"{precision} {absent}")


@functools.cache
def numbered(batch: int):
    """Unique tokens, their number at every position, and sentence lengths of running text with boundaries.

    A batch of one is a sentence of 25 tokens.
    """
    sentences, _ = common.running_text(max(batch, 64))
    running = list(itertools.chain.from_iterable(sentences))
    chosen = [running[:25]] if batch == 1 else sentences[:batch]
    begin, end = characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN
    return number_tokens((begin, *sentence, end) for sentence in chosen)


def in_float64(*tensors):
    return tuple(tensor if tensor is None or not tensor.is_floating_point() else tensor.double() for tensor in tensors)


def compare(found, expected, precision: str, exact: bool, device: str = "cpu") -> dict[str, float]:
    """Tensors against the reference's, in float64 where `exact`: the error and its limit."""
    error = agreement.relative_error(*([tensor.cpu() for tensor in side] for side in (found, expected)))
    limit = agreement.limit(precision, exact, device)
    agreement.require(f"{precision} against the reference", error, limit)
    return {"error": error, "limit": limit}


def clock(request):
    """What --benchmark-timer names, of the two that make sense here."""
    named = request.config.getoption("benchmark_timer")
    return time.process_time if named == "time.process_time" else time.perf_counter


@dataclass(frozen=True)
class Case:
    """What is timed: an op, of what size and batch, how it runs, and the check that it passed."""

    op: str
    model: str
    batch: int
    backend: str
    precision: str
    tokens: int
    checked: Mapping[str, float]
    workload: str = "running text"


def timed(request, benchmark, case: Case, call, yardstick, yardstick_name: str, floor_seconds: float | None = None,
          more: Callable[[common.Timing], dict] = lambda timing: {}):
    """Times `call`, and the yardstick once before every round; --benchmark-min-rounds says how many rounds.

    On a GPU both begin and end with an idle device.
    The row goes into `extra_info`, and with --rows into a result file; `more(timing)` are further entries of it.
    """
    seconds: list[float] = []

    config, now = request.config, clock(request)

    def between():
        start = now()
        to_its_end(config, yardstick)
        seconds.append(now() - start)

    benchmark.group = f"{case.op} {case.model} b{case.batch}"
    with torch.no_grad():
        benchmark.pedantic(to_its_end, (config, call), setup=between, warmup_rounds=1,
                           rounds=config.getoption("benchmark_min_rounds"))
    if benchmark.stats is None:  # --benchmark-disable
        return
    timing = common.Timing.of(benchmark.stats.stats.data)
    row = common.row(timing, "s", workload=case.workload, model=case.model, way=f"{case.op}, batch {case.batch}",
                     variant=case.backend, precision=case.precision, tokens=case.tokens,
                     tokens_per_s=case.tokens / timing.median, times_as_fast_as=yardstick_name,
                     times_as_fast=statistics.median(seconds[1:]) / timing.median,
                     share=floor_seconds and floor_seconds / timing.median, **case.checked, **more(timing))
    benchmark.extra_info |= row
    record(config, row)


def to_its_end(config, call) -> None:
    """A call, and what it left under way on a GPU."""
    call()
    if config.getoption("--device") == "cuda":
        torch.cuda.synchronize()


def record(config, row: dict) -> None:
    """Adds a row to those of the session, and to its file."""
    config.stash.setdefault(ROWS, []).append(row)
    if file := config.getoption("--rows"):
        write(config, file)


def leave_reason(config, case: str, reason: str) -> None:
    """Say in the session's file why a case has no row."""
    config.stash.setdefault(NOT_TIMED, {})[case] = without_paths(reason.splitlines()[0])
    if file := config.getoption("--rows"):
        write(config, file)


def write(config, file: Path) -> None:
    """The session so far as a result file of the one shape."""
    settings = {"timer": str(config.getoption("benchmark_timer")), "not_timed": config.stash.get(NOT_TIMED, {})}
    common.write_json(file, common.document("ops", settings, config.stash.get(ROWS, [])))


def without_paths(text: str) -> str:
    """Folders of this machine have no place in results that are published."""
    for folder, short in ((common.ROOT, "."), (sys.prefix, "<python>"), (tempfile.gettempdir(), "<tmp>"),
                          (Path.home(), "~")):
        text = text.replace(str(folder), short)
    return text
