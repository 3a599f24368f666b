"""What a GPU can do, and a layer of the LSTM on each of its paths; run.sh runs it.

    python -m pytest benchmarks/gpu --device cuda --rows FILE

A path is timed after it was compared with float64. `test_steps` times the steps alone, on the device's clock:
`us_per_step` of both directions. `test_lstm` times the op: between its rounds runs `torch.nn.LSTM(proj_size)` on as
many rows and steps, cuDNN's in the operand type, which has no clips and multiplies repeated tokens again;
`us_per_layer_step` includes input projections. `--device cpu`, the default, is a dry run: tiny work that measures
nothing.
"""

import itertools
import statistics
import time

import pytest
import torch

from benchmarks import agreement, common
from benchmarks.bench_ops import cases
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.engine.schedule import make_schedule
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.projected_lstm.cuda import lstm, persistent
from tests.support import cuda_ops, gpu_lstm, op_cases

SQUARES = {"fp16": (torch.float16, "highest", 8192), "tf32": (torch.float32, "high", 8192),
           "fp32": (torch.float32, "highest", 4096)}  # type, precision, and rows and columns
COPIES = {"HBM": (2048, 1), "L2": (16, 200)}  # megabytes read, and as many written, so many times: in L2 both fit
PATHS = [("persistent", "medium"), *(("graph", precision) for precision in reversed(PRECISIONS)
                                     if precision != "low")]  # which is medium on a GPU
SLOTS, STEPS = (1, 8, 16, 32, 64), (25, 200, 1000)
BATCH_SIZES = [8] * 4 + [6] * 9 + [3] * 7 + [1] * 10  # of the check


@pytest.mark.parametrize("case", [*SQUARES, *COPIES])
def test_ceiling(request, benchmark, device, case):
    """Square products of random data (zeros run faster) and copies, both by the libraries."""
    is_dry = device.type == "cpu"
    if case in SQUARES:
        dtype, precision, side = SQUARES[case]
        side = 64 if is_dry else side
        a, b = torch.randn(2, side, side, device=device).to(dtype)
        unit, amount, work = "tflop_per_s", 2 * side**3 / 1e12, lambda: a @ b
    else:
        precision, (megabytes, times) = "highest", COPIES[case]
        source = torch.zeros(1 if is_dry else megabytes << 20, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        unit, amount = "gb_per_s", 2 * len(source) * times / 1e9
        work = lambda: [target.copy_(source) for _ in range(times)]  # noqa: E731
    with numerics(precision, device):
        benchmark.pedantic(cases.to_its_end, (request.config, work), rounds=20, warmup_rounds=3)
    timing = common.Timing.of(benchmark.stats.stats.data)
    cases.record(request.config, common.row(timing, "s", workload="random", model="none", way=f"ceiling {case}",
                                            variant="torch", precision=precision, **{unit: amount / timing.median}))


def checked(device: torch.device, path: str, precision: str, sizes: tuple) -> dict:
    """The error of a path, and its limit, on a ragged batch, run plainly, captured and replayed.

    `sizes` of cells and projection; both clips fire.
    """
    if path == "persistent" and (reason := persistent.lacks(device)):
        pytest.skip(reason)
    case = gpu_lstm.ragged(BATCH_SIZES, *sizes)
    (*_, c), error, limit = gpu_lstm.compare(case, precision, device=device, times=3, path=path)
    agreement.require(f"{path} in {precision} against float64", error, limit)
    assert (c.abs() >= case.clips["cell_clip"]).any()
    return {"error": error, "limit": limit}


def test_small_layer(device):
    """The check alone, for compute-sanitizer to watch."""
    checked(device, "persistent", "medium", (256, 128))  # clusters of 8 blocks


def now(device: torch.device):
    """A moment on the device's clock."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin, end) -> float:
    """Seconds, once the device is idle."""
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3


@pytest.fixture(scope="module", params=itertools.product(PATHS, ("original", "small")), ids=str)
def layer(request, device):
    """A path, its precision, the size's name, its weights, and the check."""
    (path, precision), size = request.param
    dim, projection, _ = common.SIZES["tiny" if device.type == "cpu" else size]
    operands = op_cases.lstm_case((projection, dim, projection), [1]).leaves(wanted=[], device=device)
    found = checked(device, path, precision, (dim, projection))
    return path, precision, size, op_cases.layer(operands), found


@pytest.mark.parametrize("slots", [*SLOTS, 256, 1024])
@pytest.mark.parametrize("layer", [pytest.param(((path, "medium"), "original"), id=path)
                                   for path in ("persistent", "graph")], indirect=True)
def test_steps(request, device, layer, slots, monkeypatch):
    """Steps of the original layer in `medium`: two lengths by turns, each in one block of steps.

    Their difference excludes a launch's fixed cost. The persistent path gives the same bits every time; more than
    64 slots run in groups.
    """
    is_dry = device.type == "cpu"
    short, long, times = (2, 4, 4) if is_dry else (1024 // max(8, slots), 4096 // max(8, slots), 24)  # 4096 rows of z
    (path, precision, size, weights, found), run, spans = layer, lstm.Steps.run, []
    dim, projection = weights[0][2].shape

    def timed(steps, *arguments):
        begin = now(device)
        run(steps, *arguments)
        spans.append((begin, now(device)))

    monkeypatch.setattr(lstm.Steps, "run", timed)
    x, *state = (torch.randn(*shape, device=device) for shape in (
        (256, projection), (slots, 2 * projection), (slots, 2 * dim)))
    rows = torch.randint(0, len(x), (2, slots * long), dtype=torch.int32)
    seconds, first, same = {short: [], long: []}, {}, True
    for repetition, steps in itertools.product(range(times), seconds):
        spans.clear()
        if not is_dry:
            torch.cuda._sleep(20_000_000)  # cycles in which the host queues all that follows
        out, after = cuda_ops.projected_lstm(x, rows[:, : slots * steps], make_schedule([steps] * slots), state,
                                             weights, precision=precision, path=path, **op_cases.LOOSE)
        results = [each.cpu() for each in (out, *after)]
        same &= all(map(torch.equal, results, first.setdefault(steps, results)))
        if repetition > 1:  # the second run captures graphs
            seconds[steps].append(sum(between(*span) for span in spans))
    few, most = (statistics.median(seconds[steps]) * 1e6 for steps in seconds)
    us_per_step = (most - few) / (long - short)
    cases.record(request.config, common.row(
        common.Timing.of(seconds[long]), "s", workload="random", model=size, way="steps alone", variant=path,
        precision=precision, slots=slots, steps=long, us_per_step=us_per_step, us_per_launch=few - short * us_per_step,
        same_bits=same, **found))
    assert same or path == "graph", "the persistent path gave other bits for the same inputs"


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("steps", STEPS)
def test_lstm(request, benchmark, device, layer, slots, steps):
    """So many steps of all slots, a third of the rows unique as in text."""
    slots, steps, is_dry = (2, 3, True) if device.type == "cpu" else (slots, steps, False)
    path, precision, size, weights, found = layer
    dim, projection = weights[0][2].shape
    x, h, c = (torch.randn(*shape, device=device) for shape in (
        (max(1, slots * steps // 3), projection), (slots, 2 * projection), (slots, 2 * dim)))
    rows, schedule = torch.randint(0, len(x), (2, slots * steps), dtype=torch.int32), make_schedule([steps] * slots)
    operand = {"device": device, "dtype": torch.float16 if precision == "medium" and not is_dry else torch.float32}
    bound = torch.nn.LSTM(projection, dim, proj_size=projection, bidirectional=True, **operand)
    sequences = torch.randn(steps, slots, projection, **operand)

    def work():
        cuda_ops.projected_lstm(x, rows, schedule, (h, c), weights, precision=precision, path=path,
                                **op_cases.LOOSE)

    def more(timing: common.Timing) -> dict:
        return {"slots": slots, "steps": steps, "us_per_layer_step": timing.median / steps * 1e6}

    for _ in range(3):  # the second run captures graphs
        work()
    case = cases.Case(f"lstm, {steps} steps", size, slots, path, precision, slots * steps, found, "random")
    with numerics("highest" if precision == "medium" else precision, device):
        cases.timed(request, benchmark, case, work, lambda: bound(sequences), "nn.LSTM without clips", more=more)
