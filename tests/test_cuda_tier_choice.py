"""Which tier of the LSTM runs on a GPU, and what happens where one cannot or is not to be trusted: without a GPU."""

import logging

import pytest
import torch
from cuda_dispatch import CPU, LADDER, agrees, call_operands, gpu, take, tested, warnings
from cuda_simulator import PERSISTENT, STEPS
from models import options
from simulated_cuda import simulated
from test_projected_lstm import LENGTHS, layer

from elmo_fast.ops import cuda_limits, cuda_lstm, cuda_tiers, native_cuda_lstm, stepwise_lstm
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cuda_tiers import Rule, Work

pytestmark = pytest.mark.skipif(native_module()[0] is None, reason=f"no native module: {native_module()[1]}")
WORK = Work(37, 11, 4, 20, "medium")


# ---- which tier -------------------------------------------------------------------------------


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
