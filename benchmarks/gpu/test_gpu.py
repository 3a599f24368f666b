"""What a GPU can do, a layer of the LSTM on each of its paths and beside cuDNN's, and models beside TensorFlow's.

    python -m pytest benchmarks/gpu --device cuda --rows FILE

A path is timed after it was compared with float64. `test_steps` times the steps alone, on the device's clock:
`us_per_step` of both directions. `test_peers` times the op and `torch.nn.LSTM(proj_size)` in fp16 on as many rows and
steps, cuDNN's, which has no clips and multiplies repeated tokens again; `us_per_layer_step` includes input projections.
`--device cpu`, the default, is a dry run: tiny work that measures nothing.
"""

import functools
import itertools
import json
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import agreement, common, models
from benchmarks.bench_ops import cases
from benchmarks.peers import allennlp
from elmo_fast import BiLm
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.engine.schedule import make_schedule
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.projected_lstm.cuda import lstm, persistent
from elmo_fast.testing import AGAINST_TENSORFLOW
from tests.support import cuda_ops, gpu_lstm, op_cases

SQUARES = {"fp16": (torch.float16, "highest", 8192), "tf32": (torch.float32, "high", 8192),
           "fp32": (torch.float32, "highest", 4096)}  # type, precision, and rows and columns
COPIES = {"HBM": (2048, 1), "L2": (16, 200)}  # megabytes read, and as many written, so many times: in L2 both fit
PATHS = "persistent", "graph"
ON_GPU = [precision for precision in PRECISIONS if precision != "low"]  # which is medium there
SLOTS = (64, 1, 1024, 256, 8, 16, 32)  # what matters most comes first
BATCH_SIZES = [8] * 4 + [6] * 9 + [3] * 7 + [1] * 10  # of the check


def test_micro(request, device, tmp_path):
    """Waits of the persistent kernel alone on the chip, in microseconds, and how many clusters run at once."""
    if device.type == "cpu":
        pytest.skip("needs a GPU")
    source, program = Path(__file__).with_name("micro.cu"), tmp_path / "micro"
    subprocess.run(["nvcc", "-std=c++17", "-O3", "-arch=native", source, "-o", program], check=True)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:  # a later wait may hang
            (name, value), = json.loads(line).items()
            cases.record(request.config, common.row(
                common.Timing.of([value]), "us" if name.endswith("_us") else "count", workload="random", model="none",
                way="micro", variant=name))
    assert process.returncode == 0


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


@functools.cache
def layer(device: torch.device) -> tuple:
    """Weights of a layer of the original size, in a dry run of a tiny one."""
    dim, projection, _ = common.SIZES["tiny" if device.type == "cpu" else "original"]
    return op_cases.layer(op_cases.lstm_case((projection, dim, projection), [1]).leaves(wanted=[], device=device))


@functools.cache
def checked_layer(device: torch.device, path: str, precision: str) -> dict:
    return checked(device, path, precision, layer(device)[0][2].shape)


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("path, precision", [
    *((path, "medium") for path in PATHS), ("graph", "highest"), ("graph", "high")])
def test_steps(request, device, path, precision, slots, monkeypatch):
    """Steps of the original layer: two lengths by turns, each in one block of steps.

    Their difference excludes a launch's fixed cost. The persistent path gives the same bits every time; more than
    64 slots run in groups.
    """
    is_dry = device.type == "cpu"
    short, long, times = (2, 4, 4) if is_dry else (1024 // max(8, slots), 4096 // max(8, slots), 24)  # 4096 rows of z
    weights, found, run, spans = layer(device), checked_layer(device, path, precision), lstm.Steps.run, []
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
        common.Timing.of(seconds[long]), "s", workload="random", model="original", way="steps alone", variant=path,
        precision=precision, slots=slots, steps=long, us_per_step=us_per_step, us_per_launch=few - short * us_per_step,
        same_bits=same, **found))
    assert same or path == "graph", "the persistent path gave other bits for the same inputs"


def peers(device: torch.device, rows: int, steps: int, sizes: tuple) -> dict:
    """Calls of `torch.nn.LSTM(proj_size)`: plain, in a CUDA graph, compiled; an error in place of one that fails."""
    dim, projection = sizes
    operand = {"device": device, "dtype": torch.float16 if device.type == "cuda" else torch.float32}
    lstm = torch.nn.LSTM(projection, dim, proj_size=projection, bidirectional=True, **operand).eval()
    x = torch.randn(steps, rows, projection, **operand)

    def captured():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            lstm(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            lstm(x)
        return graph.replay

    def compiled():
        call = torch.compile(lstm)
        call(x)
        return lambda: call(x)

    calls = {"nn.LSTM": lambda: lstm(x)}
    for name, make in {"nn.LSTM in a CUDA graph": captured, "nn.LSTM compiled": compiled}.items():
        if device.type == "cuda":
            try:
                calls[name] = make()
            except Exception as error:  # of the compiler, of many types
                calls[name] = error
    return calls


@pytest.mark.parametrize("rows", SLOTS)
def test_peers(request, device, rows):
    """A hundred steps of all rows in `medium`, a third of the inputs unique as in text, by turns with the peers."""
    weights, found = layer(device), checked_layer(device, "graph", "medium")
    (dim, projection), steps, config = weights[0][2].shape, 100 if device.type == "cuda" else 3, request.config
    x, h, c = (torch.randn(*shape, device=device) for shape in (
        (max(1, rows * steps // 3), projection), (rows, 2 * projection), (rows, 2 * dim)))
    order = torch.randint(0, len(x), (2, rows * steps), dtype=torch.int32)
    schedule = make_schedule([steps] * rows)

    def ours():
        cuda_ops.projected_lstm(x, order, schedule, (h, c), weights, precision="medium", **op_cases.LOOSE)

    with torch.no_grad():
        calls = {"ours": ours} | peers(device, rows, steps, (dim, projection))
        works = {name: functools.partial(cases.to_its_end, config, call) for name, call in calls.items()
                 if not isinstance(call, Exception)}
        for work in works.values():
            work()  # the second call captures graphs
        timings = common.interleave(works, 7)
    for name, timing in timings.items():
        cases.record(config, common.row(
            timing, "s", workload="random", model="original", way="a layer beside cuDNN's", variant=name,
            precision="medium", slots=rows, steps=steps, us_per_layer_step=timing.median / steps * 1e6,
            times_as_fast_as_ours=timing.times_as_fast_as(timings["ours"]), **found if name == "ours" else {}))
    for name in calls.keys() - works.keys():
        cases.leave_reason(config, f"{name}, {rows} rows", f"{type(calls[name]).__name__}: {calls[name]}")


@pytest.mark.parametrize("precision", ON_GPU)
@pytest.mark.parametrize("name", allennlp.FIXTURES)
def test_fixtures(request, device, name, precision):
    """Layers that TensorFlow wrote: in `highest` the largest difference, below it the relative error."""
    folder = common.shared_folder() / "fixtures" / name
    if not folder.is_dir():
        pytest.skip(f"the shared folder has no fixtures/{name}")
    bilm = BiLm.from_files(folder / "options.json", folder / "lm_weights.hdf5", state="carry").eval().to(device)
    pairs = list(allennlp.beside_fixtures(models.Embedder(bilm, precision), folder))
    if precision == "highest":
        error, limit = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs), AGAINST_TENSORFLOW
    else:
        where = "cpu" if device.type == "cpu" else "cuda model"
        error, limit = agreement.relative_error(*zip(*pairs)), agreement.limit(precision, where=where)
    cases.record(request.config, common.row(common.Timing.of([error]), "error", workload="fixtures", model=name,
                                            way="accuracy", variant="ours", precision=precision, error=error,
                                            limit=limit))
    agreement.require(f"{name} in {precision} against TensorFlow", error, limit)
