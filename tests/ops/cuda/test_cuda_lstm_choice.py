"""Which path the CUDA LSTM takes: what is measured, compared and kept, with a clock that reads what a test sets."""

import contextlib
import itertools
import logging
from math import inf, nan
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops import choices, doctor
from elmo_fast.ops.choices import Choices
from elmo_fast.ops.projected_lstm.arguments import flat_weights
from elmo_fast.ops.projected_lstm.cuda import blocks, choice, lstm, persistent, step
from elmo_fast.ops.projected_lstm.cuda.choice import GRAPH, PERSISTENT
from tests.support.gpu_lstm import check, run, weights_of
from tests.support.grid import mostly_long
from tests.support.lstm_on_ptx import SMALL
from tests.support.op_cases import TIGHT, layer, lstm_case
from tests.support.ptx_machine import DEVICES

CPU, FIRING = torch.device("cpu"), lstm_case(clips=TIGHT)
FASTER = {GRAPH: 3e-4, PERSISTENT: 1e-4}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cache" / "gpu-choices.json"


@pytest.fixture
def auto(file, monkeypatch):
    """The persistent path there, `launch` on graphs, and `seconds` of a run what `takes` says, the first two ten times.

    `spoils` is what a launch multiplies outputs with, `fails_at` the launch after which there is a reason against it.
    """
    def launch(arena, layer, clips, has_starts, block, arrays, state, out):
        auto.launches.append((block.slots, block.steps, clips, has_starts))
        on_graphs = lstm.Steps(arena, layer, clips)
        on_graphs.has_starts = has_starts
        on_graphs.run(block, arrays, state, out)
        out.mul_(auto.spoils)
        return True

    def seconds(work):
        before = len(auto.launches)
        work()
        auto.timed.append(PERSISTENT if len(auto.launches) > before else GRAPH)
        return auto.takes[auto.timed[-1]] * (10 if len(auto.timed) < 3 else 1)

    auto = SimpleNamespace(takes={GRAPH: 0.003, PERSISTENT: 0.002}, timed=[], launches=[], spoils=1.0, fails_at=inf)
    monkeypatch.setattr(persistent, "lacks", lambda device: None)
    monkeypatch.setattr(persistent, "does_not_fit", lambda *_: "it failed" * (len(auto.launches) >= auto.fails_at))
    monkeypatch.setattr(persistent, "launch", launch)
    monkeypatch.setattr(choices, "seconds", seconds)
    monkeypatch.setattr(choices, "machine", lambda device: "an H100")
    monkeypatch.setattr(choices, "_choices", Choices(lambda: file))
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    return auto


@pytest.mark.parametrize("graph, persistent, rounds, launches", [
    (0.003, 0.002, 9, 1), (0.003, 0.004, 9, 0), (0.002, 0.002, 9, 0), (0.01, 0.005, 5, 1), (1.0, 0.5, 1, 1)])
def test_auto_measures_on_the_callers_weights_and_takes_the_faster(graph, persistent, rounds, launches, auto, file,
                                                                   monkeypatch):
    """Runs are repeated until the time is used; the choice is kept in memory, and on disk for another process."""
    auto.takes, weights = {GRAPH: graph, PERSISTENT: persistent}, weights_of(FIRING)
    slow = 10 if rounds == 1 else 1
    for number, measured in enumerate((1, 1, 2, 2), 1):  # calls of two processes, then of a third
        if number != 2:
            monkeypatch.setattr(choices, "_choices", Choices(lambda: file))
        auto.timed.clear()
        check(FIRING, "medium", weights)
        assert len(auto.launches) == measured * (1 + rounds) + number * launches
        assert auto.timed == ([GRAPH, PERSISTENT] * rounds if number in (1, 3) else [])
        again = "; will be measured again" * (measured == 1)
        assert (f"auto         LSTM of 37 cells, 11 values, float16, 8 slots, less than 8 steps, medium: "
                f"{choice.PATHS[launches]} (graph {1e6 * graph * slow:.0f} us, persistent {1e6 * persistent * slow:.0f}"
                f" us{again})" in doctor.lstm_lines(CPU))
    assert auto.launches[0] == (8, 4, (0.3, 0.08), True)


@pytest.mark.parametrize("spoils, fails_at, launches, said", [
    *((spoils, inf, 1, "its outputs and states differ from") for spoils in (1.01, nan, inf)),
    *((1, fails_at, fails_at, "passed over: it failed") for fails_at in (1, 10))])
def test_a_path_that_differs_or_fails_meanwhile_is_never_taken(spoils, fails_at, launches, said, auto, file, caplog):
    choice._log_once.cache_clear()
    auto.spoils, auto.fails_at = spoils, fails_at
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            check(FIRING, "medium")
    assert len(auto.launches) == launches and len(auto.timed) == (18 if launches > 1 else 0) and not file.exists()
    assert caplog.text.count(said) == 1


@pytest.fixture
def ways(file, monkeypatch):
    """Both ways of a step of the graph path there, the kernel's as torch operations, times `spoils`.

    `used` are the ways of all steps, and `takes` the seconds of a run of each.
    """
    pytest.importorskip("triton")
    from elmo_fast.kernels import configs

    gates = step.gates

    def stand_in(way, arena, layer, bucket, *given):
        ways.used.append(way)
        gates(step.CUBLAS, arena, layer, bucket, *given)
        bucket.m.mul_(ways.spoils if way == step.TRITON else 1.0)

    def seconds(work):
        work()
        return ways.takes[ways.used[-1]]

    ways = SimpleNamespace(takes={step.TRITON: 1e-4, step.CUBLAS: 2e-4}, used=[], spoils=1.0)
    monkeypatch.setattr(step, "gates", stand_in)
    monkeypatch.setattr(step, "why_no_triton", lambda device: None)
    monkeypatch.setattr(step, "lacks_fence", lambda generation: None)
    monkeypatch.setattr(configs, "generation_of", lambda device: 80)
    monkeypatch.setattr(choices, "seconds", seconds)
    monkeypatch.setattr(choices, "machine", lambda device: "an A100")
    monkeypatch.setattr(choices, "_choices", Choices(lambda: file))
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    return ways


@pytest.mark.parametrize("faster, slower", [(step.TRITON, step.CUBLAS), (step.CUBLAS, step.TRITON)])
def test_the_faster_way_of_a_step_is_taken(faster, slower, ways):
    ways.takes = {faster: 1e-4, slower: 2e-4}
    for measured in (True, False):
        ways.used.clear()
        check(FIRING, "medium")
        first, *others = [way for way, _ in itertools.groupby(ways.used)]
        assert (len(others) > 1) == measured and ways.used[-1] == faster and (measured or first == faster)
    times = ", ".join(f"{way} {1e6 * ways.takes[way]:.0f} us" for way in step.WAYS)
    assert (f"auto         LSTM steps of 37 cells, 11 values, float16, 8 slots: {faster} ({times}; will be measured "
            "again)" in doctor.lstm_lines(CPU))


@pytest.mark.parametrize("spoils", [1.01, nan])
def test_a_step_in_one_kernel_that_differs_is_never_taken(spoils, ways, caplog):
    ways.spoils = spoils
    for _ in range(2):
        check(FIRING, "medium")
    assert ways.used[-1] == step.CUBLAS and caplog.text.count("LSTM steps run on cuBLAS: outputs and states of") == 1


def test_where_a_step_is_not_measured(ways, monkeypatch):
    for precision in ("highest", "high"):
        check(FIRING, precision)
    for name, reason in (("why_no_triton", "no Triton"), ("lacks_fence", "no fence")):
        with monkeypatch.context() as patch:
            patch.setattr(step, name, lambda _, reason=reason: reason)
            check(FIRING, "medium")
    assert {*ways.used} == {step.CUBLAS} and not choices.recorded(CPU)


def test_classes():
    weights = flat_weights(layer(weights_of(FIRING)))
    fp16, bf16 = (blocks.operands(weights, "medium", clip) for clip in (3.0, inf))
    names = {choice.shape_class(of, slots, steps)[0] for of in (fp16, bf16)
             for slots in (1, 8, 9, 32, 33, 64, 200, 5000) for steps in (1, 7, 8, 63, 64, 9999)}
    assert len(names) == 2 * 6 * 3 and "37 cells, 11 values, bfloat16, 256 slots, less than 64 steps" in names
    many = [choice.shape_class(fp16, slots, 99)[1:] for slots in (8, 64, 256, 1024)]
    assert many == [(8, 64), (64, 64), (256, 32), (1024, 8)]
    assert [choice.shape_class(fp16, 8, steps)[2] for steps in (7, 8, 63, 64)] == [4, 24, 24, 64]


@pytest.mark.parametrize("precision, forced, launches, error", [
    ("highest", "", 0, None), ("high", "", 0, None), ("medium", GRAPH, 0, None), ("medium", PERSISTENT, 1, None),
    ("highest", PERSISTENT, 0, "path was asked for and does not run here: its operands are 16-bit"),
    ("medium", "A", 0, "ELMO_FAST_CUDA_LSTM: expected one of graph, persistent, got 'A'")])
def test_where_nothing_is_measured(precision, forced, launches, error, auto, monkeypatch, caplog):
    choice._log_once.cache_clear()
    monkeypatch.setenv(choice.VARIABLE, forced)
    for _ in range(2):
        with (caplog.at_level(logging.INFO),
              pytest.raises((RuntimeError, ValueError), match=error) if error else contextlib.nullcontext()):
            run(FIRING, precision)
    assert len(auto.launches) == 2 * launches and not auto.timed
    passed_over = caplog.text.count("the persistent path is passed over: its operands are 16-bit")
    assert passed_over == (precision != "medium" and not forced)


def test_doctor_launches_nothing(auto, monkeypatch):
    said = "\n".join(doctor.lstm_lines(CPU))
    assert "LSTM graph   runs, its small kernels torch operations: Triton has no kernels for cpu (cpu)" in said
    assert "LSTM persistent  runs in 'medium' where it is measured to be faster (cpu)" in said
    assert "nothing is measured here yet" in said and "is set" not in said and not auto.launches
    monkeypatch.setenv(choice.VARIABLE, GRAPH)
    assert "ELMO_FAST_CUDA_LSTM=graph is set" in doctor.lstm_lines(CPU)[-1]
    monkeypatch.setattr(persistent, "lacks", lambda device: "because")
    assert "LSTM persistent  not there: because (cpu)" in doctor.lstm_lines(CPU)


@pytest.mark.parametrize("processors, warning", mostly_long([
    (132, "a launch gave up waiting on cpu before, and a slower kernel did its work"),
    (0, "a launch was refused on cpu before (CUDA: launch: 0 blocks of a cooperative launch fit)")]))
def test_a_launch_that_fails_is_the_last(processors, warning, native, caplog, monkeypatch):
    """What was refused runs in graphs at once; what gave up was replayed on the device."""
    monkeypatch.setattr(persistent, "_TIMEOUT_NS", 0)
    monkeypatch.setenv(choice.VARIABLE, "")
    monkeypatch.setattr(choices, "machine", str)
    monkeypatch.setattr(choices, "_choices", SimpleNamespace(choose=lambda *key: PERSISTENT))
    weights = weights_of(FIRING)
    native.machine.set_device(processors, *DEVICES[native.generation][1:])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            check(FIRING, "medium", weights)
    assert len(native.calls) == 1 and caplog.text.count(warning) == 1
    monkeypatch.setenv(choice.VARIABLE, PERSISTENT)
    with pytest.raises(RuntimeError, match="was asked for and does not run here: a launch "):
        run(FIRING, "medium", weights)


@pytest.mark.parametrize("dim, inference, reason", [
    (11, False, "the layer has no projection"), (5000, False, "the cells do not fit"),
    (37, True, "the model was made in inference mode")])
def test_reasons_of_a_layer(dim, inference, reason, native):
    with torch.inference_mode(inference):
        weights = flat_weights(layer(lstm_case((11, dim, 11)).leaves(wanted=[])))
    assert reason in persistent.why_not(CPU, blocks.operands(weights, "medium", 3.0), 200)


@pytest.mark.parametrize("has_cuda, device, capability, reason", [
    (None, "cpu", None, "because"),
    (False, "cpu", None, "the native module was built without CUDA: nvcc was not found"),
    (True, "cpu", None, "it runs on NVIDIA GPUs, and this is a cpu"),
    (True, "cuda:0", (7, 5), "it needs compute capability 8.0, and this device has 7.5"),
    (True, "cuda:0", (9, 0), None)])
def test_reasons_of_a_device(has_cuda, device, capability, reason, monkeypatch):
    module = None if has_cuda is None else SimpleNamespace(has_cuda=has_cuda, cuda_skipped="nvcc was not found")
    monkeypatch.setattr(persistent, "limits", lambda device: SMALL[90])
    monkeypatch.setattr(persistent, "native_module", lambda: (module, "because"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: capability)
    assert persistent.lacks.__wrapped__(torch.device(device)) == reason
