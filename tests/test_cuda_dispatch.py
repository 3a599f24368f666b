"""What the tiers of the LSTM on a GPU compute: without a GPU.

The LSTM of whole models goes through `cuda_lstm`, in `medium`; tiers B and C run on the simulator.
"""

import numpy as np
import pytest
import torch
from cuda_dispatch import BATCHES, CPU, LADDER, agrees, agrees_over_batches, call_operands, gpu, take, tested
from cuda_simulator import PERSISTENT, STEPS
from models import SENTENCES, SHAPES, bilm, options
from simulated_cuda import simulated
from test_projected_lstm import layer
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast import ElmoEmbedder
from elmo_fast.ops import cuda_layer, cuda_limits, cuda_lstm, cuda_tiers, native_cuda_lstm, reference, stepwise_lstm
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cuda_tiers import Rule, Work
from elmo_fast.ops.doctor import tier_lines

pytestmark = pytest.mark.skipif(native_module()[0] is None, reason=f"no native module: {native_module()[1]}")


@pytest.mark.parametrize("tier", ["B", "C"])
@pytest.mark.parametrize("shape, state", [
    ("clips that fire", "carry"), ("clips that fire", "zero"), ("clips that fire", "warm"), ("no projection", "carry"),
    ("four layers", "carry"), ("no skip connections", "warm")])
def test_models_on_a_forced_tier(tier, shape, state, gpu, tested, monkeypatch):
    """A batch, a smaller one, a larger one, empty sentences, against the reference in float64."""
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    agrees_over_batches(SHAPES[shape], state)
    assert gpu.tiers() == {tier} and gpu.ran_a == 0


@pytest.mark.parametrize("shape", ["clips that fire", "no projection"])
def test_auto_takes_the_tier_of_the_table(shape, gpu, tested, monkeypatch):
    take(monkeypatch, Rule("C", most_lanes=2), Rule("B", most_lanes=4, least_dim=11), Rule("A"))
    agrees_over_batches(SHAPES[shape], "carry")
    ran = {(call["tier"], call["lanes"], len(call["live"])) for call in gpu.calls}
    # two empty sentences have too few steps for C
    assert ran == {(STEPS, 4, 13), (PERSISTENT, 2, 10), (STEPS, 3, 10), (STEPS, 2, 2), (PERSISTENT, 1, 13)}
    assert gpu.ran_a == 2  # one batch of six, two layers


def test_the_table_decides_in_medium_alone(gpu, tested, monkeypatch):
    take(monkeypatch, *LADDER)
    operands = call_operands(options())
    for precision in ("highest", "high"):
        cuda_lstm.projected_lstm(*operands, precision=precision)
    assert gpu.ran_a == 2 and not gpu.calls


@pytest.mark.parametrize("tier", ["B", "C"])
@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
def test_lanes_equal_batches(tier, state, gpu, tested, monkeypatch):
    """Sentences back to back in lanes, whose restarts the kernels do: the same bits as batch after batch."""
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    stream, batch = (ElmoEmbedder.from_bilm(bilm(SHAPES["clips that fire"], state=state)) for _ in range(2))
    sentences = [*SENTENCES, ["again"], *SENTENCES[::-1]]
    found = list(stream.embed_sentences(sentences, 3))
    expected = [each for first in range(0, len(sentences), 3) for each in batch.embed_batch(sentences[first : first + 3])]
    assert len(found) == len(expected) == 13 and gpu.tiers() == {tier}
    assert all(np.array_equal(one, other) for one, other in zip(found, expected))


@pytest.mark.parametrize("tier", ["B", "C"])
def test_lanes_that_never_run_do_not_count(tier, gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    operands = call_operands(options(), [0] * 15 + [9, 2] * 10 + [0], 36)
    _, final = agrees(operands, cell_clip=0.3, proj_clip=0.1)
    assert {call["lanes"] for call in gpu.calls} == {20}
    for before, after in zip(operands[3], final):
        assert torch.equal(before[:15], after[:15]) and not torch.equal(before[15], after[15])


@pytest.mark.parametrize("size", [1e-3, 1e4, 1e6, 1e30])
@pytest.mark.parametrize("tier", ["B", "C"])
def test_inputs_of_any_size_fit(tier, size, gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    inputs, *others = call_operands(options())
    inputs[2] = 0
    inputs[2, 4] = size  # by itself: no sum of large terms that leaves next to nothing
    agrees((inputs, *others), cell_clip=3.0, proj_clip=3.0)
    assert {call["operand"] for call in gpu.calls} == {0}


def test_products_of_scaled_rows():
    weights = layer(options(), torch.float32)
    x = torch.randn(300, 11, generator=torch.Generator().manual_seed(0))
    x[7] *= 1e6
    x[299, 3] = float("inf")
    found = cuda_layer.input_products(x, weights, "fp16")
    for one, (w, _, _) in zip(found, weights):
        expected = x.double() @ w[:11].double()
        for row in (7, 8, 298):
            assert relative_error(one[row], expected[row]) < 2e-3
        assert not one[299].isfinite().any() and one[:299].isfinite().all()
    alone = cuda_layer.input_products(x[7:8], weights, "fp16")
    assert all(torch.equal(one[7], other[0]) for one, other in zip(found, alone))


def test_of_a_large_table_the_rows_in_use_are_multiplied(gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, "B")
    inputs, rows, *others = call_operands(options())
    table = torch.cat([torch.full_like(inputs, torch.nan)] * 9 + [inputs])
    multiplied = []
    monkeypatch.setattr(native_cuda_lstm, "input_products", lambda x, *rest, run=cuda_layer.input_products: (
        multiplied.append(len(x)), run(x, *rest))[1])
    found, _ = cuda_lstm.projected_lstm(table, rows + 9 * len(inputs), *others, precision="medium", proj_clip=3.0)
    expected, _ = cuda_lstm.projected_lstm(inputs, rows, *others, precision="medium", proj_clip=3.0)
    assert multiplied == [6, 6] and torch.equal(found, expected)


def test_in_inference_mode_and_out_of_it(gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, "C")
    operands = call_operands(options(), [9, 9])
    with torch.inference_mode():
        cuda_lstm.projected_lstm(*operands, precision="medium")
    agrees(operands, cell_clip=3.0, proj_clip=3.0)


# ---- as one op, and what doctor says ----------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("tier", ["A", "B", "C"])
def test_registered_as_one_op(tier, restarts, gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    inputs, rows, schedule, state, weights = call_operands(options(), [9, 4])
    restart = (torch.zeros(22), torch.zeros(74)) if restarts else (None, None)
    operands = (inputs, rows, torch.from_numpy(schedule.live), torch.from_numpy(schedule.starts) if restarts else None,
                *state, stepwise_lstm.flat_weights(weights), "medium", 3.0, 3.0, *restart)
    torch.library.opcheck(torch.ops.elmo_fast.cuda_lstm.default, operands)
    compiled = torch.compile(lambda x: torch.ops.elmo_fast.cuda_lstm(x * 2, *operands[1:]), fullgraph=True,
                             backend="aot_eager")
    for one, other in zip(compiled(inputs), torch.ops.elmo_fast.cuda_lstm(inputs * 2, *operands[1:])):
        assert torch.equal(one, other)


def test_doctor_launches_nothing(simulated, monkeypatch):
    text = "\n".join(tier_lines(CPU))
    assert "LSTM tier B  runs in 'medium', after a self-test at first use (cpu)" in text
    assert "LSTM tier C  runs" in text and "; not for 4096 cells: the cells do not fit on the device's processors" in text
    assert not simulated.calls and "is set" not in text
    monkeypatch.setenv(cuda_tiers.VARIABLE, "B")
    assert "ELMO_FAST_CUDA_TIER=B is set: no other is taken" in "\n".join(tier_lines(CPU))
    monkeypatch.setattr(cuda_limits, "not_built", lambda: "the native module was built without CUDA")
    assert "LSTM tier C  not there: the native module was built without CUDA (cpu)" in tier_lines(CPU)


# ---- where there is a GPU ---------------------------------------------------------------------


def device_for(tier):
    """A GPU that runs the tier; skips with the reason otherwise."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    reason = cuda_tiers.why_not(tier, device, Work(1024, 128, 6, 13, "medium"))
    if reason:
        pytest.skip(reason)
    return device


@pytest.mark.gpu
@pytest.mark.parametrize("tier", ["B", "C"])
@pytest.mark.parametrize("state", ["carry", "zero"])
def test_models_on_a_gpu(tier, state, monkeypatch):
    device = device_for(tier)
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    of = options({"dim": 1024, "projection_dim": 128, "cell_clip": 0.3, "proj_clip": 0.3})
    truth = bilm(of, state=state, backend="reference").double()
    found = bilm(of, state=state, precision="medium").to(device)
    for batch in BATCHES:
        for one, other in zip(found.embed_tokens(batch)[0], truth.embed_tokens(batch)[0]):
            assert relative_error(one.cpu(), other) < AGAINST_FLOAT64["medium-bf16"]  # the char encoder's included
    assert not native_cuda_lstm.gave_up(device)


@pytest.mark.gpu
@pytest.mark.parametrize("tier", ["B", "C"])
def test_nothing_is_waited_for_on_a_gpu(tier, monkeypatch):
    device = device_for(tier)
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    inputs, rows, schedule, state, weights = call_operands(options(), [9, 9, 4])
    there = tuple(tuple(each.to(device) for each in one) for one in (*weights, state))
    operands = inputs.to(device), rows, schedule, there[2], there[:2]
    settings = {"precision": "medium", "cell_clip": 3.0, "proj_clip": 3.0}
    expected, _ = cuda_lstm.projected_lstm(*operands, **settings)
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, _ = cuda_lstm.projected_lstm(*operands, **settings)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)
