"""What a GPU can do, and a layer of the LSTM on each of its paths; run.sh runs it.

    python -m pytest benchmarks/gpu --benchmark-only --device cuda --rows FILE

A path is timed after it was compared with float64. Between its rounds runs `torch.nn.LSTM(proj_size)` on as many rows
and steps, cuDNN's in the operand type, which has no clips and multiplies repeated tokens again. `us_per_layer_step` is
a step of a layer in both directions, input projections included, `predicted_us` what predict.py expects of the
persistent kernel alone. `--device cpu`, the default, is a dry run: tiny work that measures nothing.
"""

import itertools

import pytest
import torch

from benchmarks import agreement, common
from benchmarks.bench_ops import cases
from benchmarks.gpu import predict
from elmo_fast.ops.numerics import numerics
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.projected_lstm.cuda import choice, persistent
from elmo_fast.ops.schedule import make_schedule
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


def checked(patch: pytest.MonkeyPatch, device: torch.device, path: str, precision: str, sizes: tuple) -> dict:
    """Takes a path from here on: the error, and its limit, of a ragged batch, run plainly, captured and replayed.

    `sizes` of cells and projection; both clips fire.
    """
    if path == "persistent" and (reason := persistent.lacks(device)):
        pytest.skip(reason)
    patch.setenv(choice.VARIABLE, path)
    case = gpu_lstm.ragged(BATCH_SIZES, *sizes)
    (*_, c), error, limit = gpu_lstm.compare(case, precision, device=device, times=3)
    agreement.require(f"{path} in {precision} against float64", error, limit)
    assert (c.abs() >= case.clips["cell_clip"]).any()
    return {"error": error, "limit": limit}


@pytest.mark.parametrize("path, precision", PATHS)
def test_small_layer(device, path, precision, monkeypatch):
    """The check alone, for compute-sanitizer to watch."""
    checked(monkeypatch, device, path, precision, (96, 32))


@pytest.fixture(scope="module", params=itertools.product(PATHS, ("original", "small")), ids=str)
def layer(request, device):
    """A path that is forced while it is in use, its precision, the size's name, its weights, and the check."""
    (path, precision), size = request.param
    dim, projection, _ = common.SIZES["tiny" if device.type == "cpu" else size]
    operands = op_cases.lstm_case((projection, dim, projection), [1]).leaves(wanted=[], device=device)
    with pytest.MonkeyPatch.context() as patch:
        found = checked(patch, device, path, precision, (dim, projection))
        yield path, precision, size, op_cases.layer(operands), found


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
        cuda_ops.projected_lstm(x, rows, schedule, (h, c), weights, precision=precision, **op_cases.LOOSE)

    def more(timing: common.Timing) -> dict:
        is_predicted = path == "persistent" and size == "original" and not is_dry
        return {"slots": slots, "steps": steps, "us_per_layer_step": timing.median / steps * 1e6,
                "predicted_us": predict.predicted_us(torch.cuda.get_device_name(), slots) if is_predicted else None}

    for _ in range(3):  # the second run captures graphs
        work()
    case = cases.Case(f"lstm, {steps} steps", size, slots, path, precision, slots * steps, found, "random")
    with numerics("highest" if precision == "medium" else precision, device):
        cases.timed(request, benchmark, case, work, lambda: bound(sequences), "nn.LSTM without clips", more=more)
