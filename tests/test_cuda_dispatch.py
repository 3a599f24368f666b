"""Which tier of the LSTM runs on a GPU, with what numbers, and what happens where one cannot: without a GPU.

The LSTM of whole models goes through `cuda_lstm`, in `medium`; tiers B and C run on the simulator.
"""

import logging

import numpy as np
import pytest
import torch
from cuda_simulator import PERSISTENT, STEPS
from models import SENTENCES, SHAPES, bilm, options
from simulated_cuda import simulated
from test_projected_lstm import LENGTHS, draw, layer
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast import ElmoEmbedder
from elmo_fast.ops import cuda_layer, cuda_limits, cuda_lstm, cuda_tiers, native_cuda_lstm, reference, stepwise_lstm
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cuda_tiers import Rule, Work
from elmo_fast.ops.doctor import tier_lines
from elmo_fast.ops.schedule import make_schedule

pytestmark = pytest.mark.skipif(native_module()[0] is None, reason=f"no native module: {native_module()[1]}")
CPU = torch.device("cpu")
LIMIT = AGAINST_FLOAT64["medium-fp16"]
BATCHES = [SENTENCES[:4], SENTENCES[1:3], SENTENCES[::-1], SENTENCES[2:5], [[], []], SENTENCES[:1]]
LADDER = Rule("C", most_lanes=32), Rule("B"), Rule("A")


@pytest.fixture
def gpu(simulated, monkeypatch):
    """The simulator; the LSTM of every model goes through the CUDA tiers. `ran_a` counts the calls of tier A."""
    simulated.ran_a = 0

    def through_tiers(*operands, backend, multiplied, **settings):
        assert not multiplied
        if backend == "reference":
            return reference.projected_lstm(*operands, **{key: settings[key] for key in settings if key != "precision"})
        return cuda_lstm.projected_lstm(*operands, **{**settings, "precision": "medium"})

    def tier_a(*operands, run=stepwise_lstm.run):
        simulated.ran_a += 1
        return run(*operands)

    monkeypatch.setattr("elmo_fast.model.lstm.projected_lstm", through_tiers)
    monkeypatch.setattr(stepwise_lstm, "run", tier_a)
    return simulated


@pytest.fixture
def tested(monkeypatch):
    """Shapes are trusted without a self-test."""
    monkeypatch.setattr("elmo_fast.ops.cuda_self_test.failure", lambda *layer: None)


def take(monkeypatch, *rules):
    monkeypatch.setattr(cuda_tiers, "rules_of", lambda device: rules)


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["B", "C"])
@pytest.mark.parametrize("shape, state", [
    ("clips that fire", "carry"), ("clips that fire", "zero"), ("clips that fire", "warm"), ("no projection", "carry"),
    ("four layers", "carry"), ("no skip connections", "warm")])
def test_models_on_a_forced_tier(tier, shape, state, gpu, tested, monkeypatch):
    """A batch, a smaller one, a larger one, empty sentences, against the reference in float64."""
    monkeypatch.setenv(cuda_tiers.VARIABLE, tier)
    agrees_over_batches(SHAPES[shape], state)
    assert gpu.tiers() == {tier} and gpu.ran_a == 0


def agrees_over_batches(of, state):
    truth, found = bilm(of, state=state, backend="reference").double(), bilm(of, state=state)
    for batch in BATCHES:
        assert truth._elmo_lstm.W_0_0_0.dtype == torch.float64
        expected, layers = truth.embed_tokens(batch)[0], found.embed_tokens(batch)[0]
        for one, other in zip(layers, expected):
            assert relative_error(one, other) < LIMIT
    if state == "carry":
        for one, other in zip(found._elmo_lstm._states, truth._elmo_lstm._states):
            assert relative_error(one, other) < LIMIT


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


def call_operands(of, lengths=LENGTHS, lane_count=None, **more):
    inputs, _, state = draw(of, torch.float32)
    schedule = make_schedule(lengths, None, lane_count)
    count = schedule.lanes.size
    state = tuple(torch.cat([each] * 6)[:count] for each in state)
    rows = torch.from_numpy(schedule.tokens % len(inputs))
    return inputs, rows, schedule, state, layer(of, torch.float32)


def agrees(operands, **settings):
    found, final = cuda_lstm.projected_lstm(*operands, precision="medium", **settings)
    inputs, rows, schedule, state, weights = operands
    double = tuple(tuple(None if each is None else each.double() for each in one) for one in (*weights, state))
    expected, expected_final = reference.projected_lstm(inputs.double(), rows, schedule, double[2], double[:2], **settings)
    for one, other in zip((found, *final), (expected, *expected_final)):
        assert one.shape == other.shape and one.dtype == torch.float32 and relative_error(one, other) < LIMIT
    return found, final


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


# ---- which tier -------------------------------------------------------------------------------


WORK = Work(37, 11, 4, 20, "medium")


@pytest.mark.parametrize("tier, change, reason", [
    ("B", {"precision": "high"}, "its operands are 16-bit, and precision is 'high'"),
    ("B", {"dim": 11}, "it knows no projection to as many values as there are cells"),
    ("B", {"edits_count": False}, "made in inference mode"),
    ("B", {"dim": 1 << 19, "projection": 1 << 15}, "a block needs more shared memory than the device has"),
    ("C", {"dim": 4096}, "the cells do not fit on the device's processors"),
    ("C", {"lanes": 33}, "the batch is above 32 lanes"),
    ("C", {"steps": 7}, "it pays from 8 steps on, and there are 7"),
    ("B", {}, None), ("C", {}, None), ("A", {"precision": "highest", "dim": 1 << 19}, None),
    ("B", {"dim": 11, "is_projected": False}, None), ("B", {"lanes": 33, "steps": 1}, None),
])
def test_reasons(tier, change, reason, simulated, tested):
    found = cuda_tiers.why_not(tier, CPU, Work(**{**vars(WORK), **change}))
    assert found is None if reason is None else reason in found
    assert not simulated.calls


def test_blocks_that_are_not_resident_at_once(simulated, tested, monkeypatch):
    monkeypatch.setattr(cuda_limits, "resident_blocks", lambda of, device, dim, projection, lanes, operand: 2)
    assert "its 3 blocks must run at once, and the device holds 2" in cuda_tiers.why_not("C", CPU, WORK)
    assert cuda_tiers.why_not("B", CPU, WORK) is None


def test_a_device_that_cannot_say_what_it_holds(simulated, tested, monkeypatch):
    def refuse(*layer):
        raise RuntimeError("CUDA: shared memory: invalid argument")

    monkeypatch.setattr(cuda_limits, "resident_blocks", refuse)
    assert cuda_tiers.why_not("C", CPU, WORK) == "CUDA: shared memory: invalid argument"


def test_a_device_without_kernels(monkeypatch):
    monkeypatch.setattr(cuda_limits, "not_built", lambda: None)
    assert cuda_tiers.why_not("B", CPU, WORK) == "it runs on NVIDIA GPUs, and this is a cpu"
    take(monkeypatch, *LADDER)
    assert cuda_tiers.choose(WORK, CPU) == "A"


def test_a_forced_tier_that_cannot_run_says_why(gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, "C")
    with pytest.raises(RuntimeError, match="tier C was asked for and does not run here: the batch is above 32 lanes"):
        cuda_lstm.projected_lstm(*call_operands(options(), [9] * 33), precision="medium")
    with pytest.raises(RuntimeError, match="does not run here: its operands are 16-bit, and precision is 'highest'"):
        cuda_lstm.projected_lstm(*call_operands(options()))
    assert not gpu.calls and gpu.ran_a == 0


def test_a_forced_tier_runs_what_it_would_not_pay_for(gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, "C")
    agrees(call_operands(options(), [2, 1]), cell_clip=3.0, proj_clip=3.0)
    assert gpu.tiers() == {"C"}
    operands = call_operands(options(), [0, 0])
    out, final = cuda_lstm.projected_lstm(*operands, precision="medium")
    assert out.shape == (0, 22) and not gpu.calls and all(map(torch.equal, final, operands[3]))


def test_operands_are_bf16_where_fp16_is_not_bounded(gpu, tested, monkeypatch):
    monkeypatch.setenv(cuda_tiers.VARIABLE, "B")
    cuda_lstm.projected_lstm(*call_operands(options()), precision="medium")
    cuda_lstm.projected_lstm(*call_operands(options()), precision="medium", proj_clip=3.0)
    large = call_operands(options())
    large[4][0][0][0, 0] = 4e4
    cuda_lstm.projected_lstm(*large, precision="medium", proj_clip=3.0)
    assert [call["operand"] for call in gpu.calls] == [1, 0, 1]


# ---- when a tier is not trusted ---------------------------------------------------------------


def test_a_tier_is_tested_once_for_each_kind_of_layer(gpu, monkeypatch):
    take(monkeypatch, *LADDER)
    shapes = []
    monkeypatch.setattr("elmo_fast.ops.cuda_self_test.difference", lambda run, *kind: shapes.append(kind))
    for of, clip in ((options(), 3.0), (options(), 3.0), (options(), None), (options({"dim": 11}), 3.0)):
        for lengths in (LENGTHS, LENGTHS[:4], [9] * 33):
            cuda_lstm.projected_lstm(*call_operands(of, [each + 9 for each in lengths]), precision="medium", proj_clip=clip)
    kinds = [(CPU, 37, 11, "fp16"), (CPU, 37, 11, "bf16"), (CPU, 11, 11, "fp16")]
    assert shapes == [(tier, *kind) for kind in kinds for tier in "CB"]


@pytest.mark.parametrize("operand, clip", [("fp16", 3.0), ("bf16", None)])
def test_the_self_test_passes(operand, clip, gpu, monkeypatch, caplog):
    take(monkeypatch, *LADDER)
    for lengths, tier in (([9, 9], "C"), ([9] * 33, "B")):
        cuda_lstm.projected_lstm(*call_operands(options(), lengths), precision="medium", proj_clip=clip)
        assert gpu.tiers() == {tier}
    assert not warnings(caplog)


def test_a_tier_that_is_wrong_is_passed_over(gpu, monkeypatch, caplog):
    take(monkeypatch, *LADDER)
    operands, settings = call_operands(options(), [9, 9]), {"precision": "medium", "proj_clip": 3.0}
    gpu.wrong = {PERSISTENT, STEPS}
    for number in range(2):
        found, _ = cuda_lstm.projected_lstm(*operands, **settings)
        assert gpu.tiers() == (set() if number else {"B", "C"})  # the self-tests alone
    expected, _ = stepwise_lstm.projected_lstm(*operands, **settings)
    assert torch.equal(found, expected) and gpu.ran_a == 2
    assert ["tier C is not used" in each or "tier B is not used" in each for each in warnings(caplog)] == [True, True]
    assert all("37 cells and 11 values on cpu: its self-test differs by 1.0e-02, at most 0.003" in each
               for each in warnings(caplog))
    monkeypatch.setenv(cuda_tiers.VARIABLE, "C")
    with pytest.raises(RuntimeError, match="does not run here: its self-test differs"):
        cuda_lstm.projected_lstm(*operands, **settings)


def test_a_self_test_that_cannot_run(gpu, monkeypatch, caplog):
    take(monkeypatch, Rule("B"), Rule("A"))

    def no_memory(*given, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu, "cuda_lstm_steps", no_memory, raising=False)
    for _ in range(2):
        agrees(call_operands(options(), [9, 9]), cell_clip=3.0, proj_clip=3.0)
    (warning,) = warnings(caplog)
    assert "its self-test did not run (CUDA out of memory)" in warning and gpu.ran_a == 2


@pytest.mark.parametrize("when", ["in the self-test", "later"])
def test_a_launch_that_gives_up_is_the_last(when, gpu, monkeypatch, caplog):
    """A block that never comes: the launch ends, its numbers are the same, and the next calls take tier B."""
    take(monkeypatch, *LADDER)
    operands, settings = call_operands(options(), [9, 9]), {"precision": "medium", "cell_clip": 0.3, "proj_clip": 0.1}
    if when == "later":
        whole = cuda_lstm.projected_lstm(*operands, **settings)
        assert gpu.tiers() == {"C"}
    monkeypatch.setenv("ELMO_FAST_CUDA_ABSENT_BLOCK", "1")
    monkeypatch.setattr(native_cuda_lstm, "_PATIENCE", 10**7)
    first = cuda_lstm.projected_lstm(*operands, **settings)
    assert gpu.tiers() == ({"C"} if when == "later" else {"B", "C"})
    if when == "later":
        assert torch.equal(first[0], whole[0]) and all(map(torch.equal, first[1], whole[1]))
    for lengths in ([9, 9], [10]):
        agrees(call_operands(options(), lengths), cell_clip=0.3, proj_clip=0.1)
        agrees(call_operands(options({"dim": 29}), lengths), cell_clip=0.3, proj_clip=0.1)
    assert gpu.tiers() == {"B"} and gpu.ran_a == 0
    (warning,) = warnings(caplog)
    assert "gave up waiting on cpu" in warning and "the same numbers" in warning
    monkeypatch.setenv(cuda_tiers.VARIABLE, "C")
    with pytest.raises(RuntimeError, match="does not run here: it gave up on cpu before"):
        cuda_lstm.projected_lstm(*operands, **settings)


def test_a_launch_that_is_refused_is_the_last(gpu, tested, monkeypatch, caplog):
    take(monkeypatch, *LADDER)
    asked = []

    def refuse(**call):
        asked.append(call)
        raise RuntimeError("CUDA: launch: too many blocks in cooperative launch")

    monkeypatch.setattr(gpu, "cuda_lstm_persistent", refuse, raising=False)
    for _ in range(3):
        agrees(call_operands(options(), [9, 9]), cell_clip=3.0, proj_clip=3.0)
    assert len(asked) == 1 and gpu.tiers() == {"B"}
    assert ["refused on cpu" in each for each in warnings(caplog)] == [True]


def test_a_tier_is_passed_over_with_one_line(gpu, tested, monkeypatch, caplog):
    take(monkeypatch, *LADDER)
    monkeypatch.setattr(cuda_limits, "resident_blocks", lambda *layer: 1)
    cuda_tiers._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            agrees(call_operands(options(), [9, 9]), cell_clip=3.0, proj_clip=3.0)
    assert caplog.text.count("CUDA tier C is passed over: its 3 blocks must run at once, and the device holds 1") == 1
    assert gpu.tiers() == {"B"}


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
