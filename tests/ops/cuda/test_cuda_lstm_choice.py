"""Which path the CUDA LSTM takes: what is measured, compared and kept, with a clock that reads what a test sets."""

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops import doctor
from elmo_fast.ops.cuda import blocks, choice, persistent, steps
from elmo_fast.ops.cuda.choice import GRAPH, PERSISTENT, Choices, Measured
from elmo_fast.ops.schemas import flat_weights
from tests.support.gpu_lstm import FIRING, check, layer, run, text
from tests.support.lstm_kernel_case import SMALL
from tests.support.models import options
from tests.support.ptx_machine import machine

CPU = torch.device("cpu")
FASTER, SLOWER = Measured(PERSISTENT, 3e-4, 1e-4), Measured(GRAPH, 1e-4, 2e-4)


@pytest.fixture
def clock(monkeypatch):
    """Runs take what `takes` has for the path that their work names, the first two ten times that; `timed` has them."""
    def seconds(work):
        clock.timed.append(work())
        return clock.takes[clock.timed[-1]] * (10 if len(clock.timed) < 3 else 1)

    clock = SimpleNamespace(takes={GRAPH: 0.003, PERSISTENT: 0.002}, timed=[], seconds=seconds)
    monkeypatch.setattr(choice, "seconds", seconds)
    return clock


def measured(persistent=1.0005, why_not=lambda: None):
    """`measure` on runs that give 1 and `persistent`, and their path when they are timed."""
    results, first = {GRAPH: 1.0, PERSISTENT: persistent}, [GRAPH, PERSISTENT]

    def run_on(path):
        if first and first.pop(0):
            return torch.ones(3), torch.ones(2) * results[path]
        return path

    return choice.measure(run_on, 1e-3, why_not)


@pytest.mark.parametrize("graph, persistent, faster, rounds", [
    (0.003, 0.002, PERSISTENT, 9), (0.002, 0.002, GRAPH, 9), (0.01, 0.005, PERSISTENT, 5), (1.0, 0.5, PERSISTENT, 1)])
def test_the_faster_wins_and_repeats_end_when_the_time_is_used(graph, persistent, faster, rounds, clock):
    clock.takes, slow = {GRAPH: graph, PERSISTENT: persistent}, 10 if rounds == 1 else 1
    assert measured() == Measured(faster, graph * slow, persistent * slow)
    assert clock.timed == [GRAPH, PERSISTENT] * rounds


@pytest.mark.parametrize("value", [1.002, math.nan, math.inf])
def test_a_path_that_differs_is_not_timed(value, clock, caplog):
    assert measured(value) is None and not clock.timed
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "and states differ by" in caplog.text


def test_a_launch_that_fails_meanwhile_decides(clock):
    reasons = iter([None, "it gave up"])
    assert measured(why_not=lambda: "refused") is None and not clock.timed
    assert measured(why_not=lambda: next(reasons)) is None and clock.timed


def test_classes():
    fp16, bf16 = (blocks.operands(flat_weights(layer()), "medium", clip) for clip in (3.0, math.inf))
    names = {choice.shape_class(of, slots, steps)[0] for of in (fp16, bf16)
             for slots in (1, 8, 9, 32, 33, 64, 200, 5000) for steps in (1, 7, 8, 63, 64, 9999)}
    assert len(names) == 2 * 6 * 3 and "37 cells, 11 values, bfloat16, 256 slots, less than 64 steps" in names
    many = [choice.shape_class(fp16, slots, 99)[1:] for slots in (8, 64, 256, 1024)]
    assert many == [(8, 64), (64, 64), (256, 32), (1024, 8)]


# ---- what is kept -----------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cache" / "cuda-lstm.json"


def refuse():
    raise AssertionError("measured again")


def path(file, machine="an H100", shape="a class", found=FASTER):
    """What another process finds; `found` None where it must not measure."""
    return Choices(lambda: file).path(machine, shape, refuse if found is None else lambda: found)


def test_what_was_measured_is_found_again(file):
    assert path(file) == path(file, found=None) == PERSISTENT
    assert path(file, "an H200", found=SLOWER) == path(file, shape="another", found=SLOWER) == GRAPH
    assert Choices(lambda: file).read()["an H100"] == {"a class": FASTER, "another": SLOWER}
    assert [each.name for each in file.parent.iterdir()] == ["cuda-lstm.json"]
    assert json.loads(file.read_text())["an H200"]["a class"]["path"] == GRAPH


def test_a_path_that_failed_is_kept_in_memory_alone(file):
    choices = Choices(lambda: file)
    assert choices.path("an H100", "a class", lambda: None) == GRAPH
    assert choices.path("an H100", "a class", refuse) == GRAPH and not file.exists()


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"\xff\x00", b'{"an H100": []}', b'{"an H100": {"a class": 1}}',
    b'{"an H100": {"a class": {"path": "B"}}}',
    b'{"an H100": {"a class": {"path": "graph", "graph": "1", "persistent": 1.0}}}',
    b'{"an H100": {"a class": {"path": "B", "graph": 1.0, "persistent": 1.0}}}'])
def test_a_broken_file_means_measuring_again(content, file):
    file.parent.mkdir()
    file.write_bytes(content)
    assert path(file) == path(file, found=None) == PERSISTENT


def test_a_place_that_cannot_be_written_means_measuring_again(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert path(tmp_path / "file" / "cuda-lstm.json") == path(tmp_path / "file" / "cuda-lstm.json") == PERSISTENT


# ---- which path -------------------------------------------------------------------------------


@pytest.fixture
def auto(clock, monkeypatch, file):
    """Nothing is forced. Launches, collected in `launches`, do their work on the graph path, with `clips` if given."""
    def launch(arena, layer, weights, clips, has_starts, sent, state, out):
        clock.launches.append((sent.block.slots, sent.block.steps, clips, has_starts))
        on_graphs = steps.Steps(arena, layer, weights, clock.clips or clips)
        on_graphs.has_starts = has_starts
        on_graphs.run(sent, state, out)
        return True

    def seconds(work):
        before = len(clock.launches)
        return clock.seconds(lambda: work() and (PERSISTENT if len(clock.launches) > before else GRAPH))

    clock.launches, clock.clips = [], None
    for name, stand_in in (("lacks", lambda device: None), ("does_not_fit", lambda *given: None), ("launch", launch)):
        monkeypatch.setattr(persistent, name, stand_in)
    monkeypatch.setattr(choice, "seconds", seconds)
    monkeypatch.setattr(choice, "machine", lambda device: "an H100")
    monkeypatch.setattr(choice, "_choices", Choices(lambda: file))
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    return clock


@pytest.mark.parametrize("takes, launches", [(0.002, 1), (0.004, 0)])
def test_auto_measures_on_the_callers_weights_and_takes_the_faster(takes, launches, auto, file, monkeypatch):
    auto.takes, weights = {GRAPH: 0.003, PERSISTENT: takes}, layer()
    check(FIRING, "medium", *text(), weights=weights)
    assert len(auto.launches) == 1 + 9 + launches and auto.launches[0] == (8, 4, (0.3, 0.05), True)
    for choices in (choice._choices, Choices(lambda: file)):  # another process
        monkeypatch.setattr(choice, "_choices", choices)
        check(FIRING, "medium", *text(), weights=weights)
    assert len(auto.launches) == 10 + 3 * launches and len(auto.timed) == 18
    said = "\n".join(doctor.lstm_lines(CPU))
    assert "37 cells, 11 values, float16, 8 slots, less than 8 steps, medium: " in said
    assert f"medium: {choice.PATHS[launches]} (graph 3000 us, persistent " in said


def test_results_that_differ_are_never_taken(auto, caplog):
    auto.clips = (0.29, 0.05)
    for _ in range(2):
        check(FIRING, "medium", *text())
    assert len(auto.launches) == 1 and caplog.text.count("its outputs and states differ") == 1


@pytest.mark.parametrize("precision, capturing", [("highest", False), ("high", False), ("medium", True)])
def test_where_nothing_is_measured(precision, capturing, auto, monkeypatch, caplog):
    choice._log_once.cache_clear()
    monkeypatch.setattr(choice, "is_capturing", lambda device: capturing)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            run(FIRING, precision, *text())
    assert not auto.launches and not auto.timed
    assert caplog.text.count("the persistent path is passed over: its operands are 16-bit") == (not capturing)


def test_a_forced_path(auto, monkeypatch):
    for forced, launches in ((GRAPH, 0), (PERSISTENT, 1)):
        monkeypatch.setenv(choice.VARIABLE, forced)
        run(FIRING, "medium", *text())
        assert len(auto.launches) == launches and not auto.timed
    with pytest.raises(RuntimeError, match="path was asked for and does not run here: its operands are 16-bit"):
        run(FIRING, "highest", *text())
    monkeypatch.setenv(choice.VARIABLE, "A")
    with pytest.raises(ValueError, match="ELMO_FAST_CUDA_LSTM: expected one of graph, persistent, got 'A'"):
        run(FIRING, "medium", *text())


def test_doctor_launches_nothing(auto, monkeypatch):
    said = "\n".join(doctor.lstm_lines(CPU))
    assert "LSTM graph   runs, its small kernels torch operations: Triton has no kernels for cpu (cpu)" in said
    assert "LSTM persistent  runs in 'medium' where it is measured to be faster (cpu)" in said
    assert "nothing is measured here yet" in said and "is set" not in said and not auto.launches
    monkeypatch.setenv(choice.VARIABLE, GRAPH)
    assert "ELMO_FAST_CUDA_LSTM=graph is set" in doctor.lstm_lines(CPU)[-1]
    monkeypatch.setattr(persistent, "lacks", lambda device: "because")
    assert "LSTM persistent  not there: because (cpu)" in doctor.lstm_lines(CPU)


# ---- why not ----------------------------------------------------------------------------------


@pytest.mark.parametrize("native, refuses, warning", [
    (90, True, "a launch was refused on cpu before (CUDA: launch: too many blocks in cooperative launch)"),
    (80, False, "a launch gave up waiting on cpu before, and a slower kernel did its work")], indirect=["native"])
def test_a_launch_that_fails_is_the_last(native, refuses, warning, caplog, monkeypatch):
    """What was refused runs in graphs at once; what gave up was replayed on the device."""
    monkeypatch.setattr(persistent, "_TIMEOUT_NS", 0)
    monkeypatch.setenv(choice.VARIABLE, "")
    monkeypatch.setattr(choice, "machine", str)
    monkeypatch.setattr(choice, "_choices", SimpleNamespace(path=lambda *key: PERSISTENT))
    native.refuses, weights = refuses, layer()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            check(FIRING, "medium", *text(), weights=weights)
    assert len(native.calls) == 1 and caplog.text.count(warning) == 1
    monkeypatch.setenv(choice.VARIABLE, PERSISTENT)
    with pytest.raises(RuntimeError, match="was asked for and does not run here: a launch "):
        run(FIRING, "medium", *text(), weights=weights)


@pytest.mark.parametrize("precision, dim, inference, reason", [
    ("highest", 37, False, "16-bit, which precision 'medium' alone"), ("medium", 11, False, "without a projection"),
    ("medium", 5000, False, "the cells do not fit"), ("medium", 37, True, "made in inference mode"),
    ("medium", 37, False, None)])
def test_reasons_of_a_layer(precision, dim, inference, reason, monkeypatch, uncached):
    monkeypatch.setattr(persistent, "native_module", lambda: (machine(90), None))
    monkeypatch.setattr(persistent, "lacks", lambda device: None)
    monkeypatch.setattr(persistent, "limits", lambda device: SMALL[90])
    with torch.inference_mode(inference):
        weights = flat_weights(layer(options({"dim": dim})))
    found = persistent.why_not(CPU, blocks.operands(weights, precision, 3.0), weights, 200)
    assert str(reason) in str(found)


def test_reasons_of_a_device(monkeypatch, uncached):
    cpu_only, module = (SimpleNamespace(has_cuda=has, cuda_skipped="nvcc was not found") for has in (False, True))
    gpu, found = torch.device("cuda", 0), []
    monkeypatch.setattr(persistent, "limits", lambda device: SMALL[90])
    for native, device, capability in ((None, CPU, None), (cpu_only, CPU, None), (module, CPU, None),
                                       (module, gpu, (7, 5)), (module, gpu, (9, 0))):
        uncached()
        monkeypatch.setattr(persistent, "native_module", lambda: (native, "because"))  # noqa: B023
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: capability)  # noqa: B023
        found.append(persistent.lacks(device))
    assert found == [
        "because", "the native module was built without CUDA: nvcc was not found",
        "it runs on NVIDIA GPUs, and this is a cpu", "it needs compute capability 8.0, and this device has 7.5", None]
