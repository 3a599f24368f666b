"""Which path the CUDA LSTM takes: what is measured, compared and kept, with a clock that says what it is told."""

import json
import logging
import math
import multiprocessing

import pytest
import test_projected_lstm as op_tests
import torch
from test_cuda_lstm_graph import FIRING, SHAPES, arenas, assert_close, expected_of, run
from test_cuda_lstm_persistent import FP16, forget, native

from elmo_fast.ops import doctor
from elmo_fast.ops.cuda import choice, persistent
from elmo_fast.ops.cuda.choice import GRAPH, PERSISTENT, Choices, Measured, ShapeClass

CPU = torch.device("cpu")
SHAPE = ShapeClass.of(37, 11, torch.float16, 7, 9)
FASTER = Measured(PERSISTENT, 3e-4, 1e-4)


class Clock:
    """Every run takes what `seconds` says of its path; `cost` seconds pass with each."""

    def __init__(self, graph=3.0, persistent=2.0, cost=0.01):
        self.takes, self.cost, self.time, self.timed = {GRAPH: graph, PERSISTENT: persistent}, cost, 0.0, []

    def now(self):
        return self.time

    def seconds(self, work):
        self.timed.append(work())
        self.time += self.cost
        return self.takes[self.timed[-1]] * (10 if len(self.timed) < 3 else 1)  # an outlier, for the median


def measured(clock, results=None, tolerance=1e-3, why_not=lambda: None):
    """`measure` on runs that give `results`, and say which path ran when they are timed."""
    results = results or {GRAPH: 1.0, PERSISTENT: 1.0005}
    first = [GRAPH, PERSISTENT]

    def run(path):
        if first and first.pop(0):
            return torch.ones(3), torch.ones(2) * results[path]
        return path

    return choice.measure(run, clock, tolerance, why_not)


@pytest.mark.parametrize("graph, persistent, faster", [(3.0, 2.0, PERSISTENT), (2.0, 3.0, GRAPH), (2.0, 2.0, GRAPH)])
def test_the_faster_wins(graph, persistent, faster):
    clock = Clock(graph, persistent)
    assert measured(clock) == Measured(faster, graph, persistent)
    assert clock.timed == [GRAPH, PERSISTENT] * 9


@pytest.mark.parametrize("cost, rounds", [(0.01, 9), (0.03, 4), (0.3, 1), (5.0, 1)])
def test_repeats_end_when_the_time_is_used(cost, rounds):
    clock = Clock(cost=cost)
    measured(clock)
    assert len(clock.timed) == 2 * rounds


@pytest.mark.parametrize("value", [1.002, math.nan, math.inf])
def test_a_path_that_differs_is_not_timed(value, caplog):
    clock = Clock()
    assert measured(clock, {GRAPH: 1.0, PERSISTENT: value}) is None and not clock.timed
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "and states differ by" in caplog.text


def test_a_launch_that_fails_meanwhile_decides():
    clock, reasons = Clock(), iter([None, "it gave up"])
    assert measured(clock, why_not=lambda: "refused") is None and not clock.timed
    assert measured(clock, why_not=lambda: next(reasons)) is None and clock.timed


def test_classes():
    names = {str(ShapeClass.of(64, 16, dtype, slots, steps)) for dtype in (torch.float16, torch.bfloat16)
             for slots in (1, 8, 9, 32, 33, 64, 200, 5000) for steps in (1, 7, 8, 63, 64, 9999)}
    assert len(names) == 2 * 6 * 3 and "64 cells, 16 values, bfloat16, 256 slots, less than 64 steps" in names
    many = [ShapeClass.of(64, 16, torch.float16, slots, 99) for slots in (8, 64, 256, 1024)]
    assert [each.trial_steps for each in many] == [64, 64, 32, 8]


# ---- what is kept -----------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cache" / "cuda-lstm.json"


def refuse():
    raise AssertionError("measured again")


def test_what_was_measured_is_found_again(file):
    choices, asked = Choices(lambda: file), []
    for _ in range(2):
        assert choices.path("an H100", "a class", lambda: asked.append(1) or FASTER) == PERSISTENT
    assert len(asked) == 1 and not list(file.parent.glob("*.[0-9]*"))
    assert Choices(lambda: file).path("an H100", "a class", refuse) == PERSISTENT
    for key in (("an H200", "a class"), ("an H100", "another")):
        assert Choices(lambda: file).path(*key, lambda: Measured(GRAPH, 1e-4, 2e-4)) == GRAPH
    assert Choices(lambda: file).recorded("an H100") == {"a class": FASTER, "another": Measured(GRAPH, 1e-4, 2e-4)}


def test_a_path_that_failed_is_kept_in_memory_alone(file):
    choices = Choices(lambda: file)
    assert choices.path("an H100", "a class", lambda: None) == GRAPH
    assert choices.path("an H100", "a class", refuse) == GRAPH and not file.exists()


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"\xff\x00", b'{"an H100": []}', b'{"an H100": {"a class": 1}}',
    b'{"an H100": {"a class": {"path": "B"}}}',
    b'{"an H100": {"a class": {"path": "graph", "graph": "1", "persistent": 1.0}}}',
    b'{"an H100": {"a class": {"path": "B", "graph": 1.0, "persistent": 1.0}}}'])
def test_a_file_that_is_none_means_measuring_again(text, file):
    file.parent.mkdir()
    file.write_bytes(text)
    assert Choices(lambda: file).path("an H100", "a class", lambda: FASTER) == PERSISTENT
    assert Choices(lambda: file).path("an H100", "a class", refuse) == PERSISTENT


def test_a_place_that_cannot_be_written_means_measuring_again(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        found = Choices(lambda: tmp_path / "file" / "cuda-lstm.json").path("an H100", "a class", lambda: FASTER)
        assert found == PERSISTENT


def record_many(file, number):
    for k in range(20):
        Choices(lambda: file).path("an H100", f"class {number} {k}", lambda: FASTER)


def test_processes_that_write_at_once_lose_nothing(file):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=record_many, args=(file, number)) for number in range(3)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert len(json.loads(file.read_text())["an H100"]) == 60
    assert sorted(each.name for each in file.parent.iterdir()) == ["cuda-lstm.json", "cuda-lstm.lock"]


# ---- which path -------------------------------------------------------------------------------


@pytest.fixture
def auto(native, monkeypatch, file):
    """Nothing is forced; the native module's launches are timed by `Clock`, which `clocks` collects."""
    monkeypatch.setenv(choice.VARIABLE, "")
    monkeypatch.setattr(choice, "_choices", Choices(lambda: file))
    native.clocks, native.clock = [], {}

    class Watched(Clock):
        def seconds(self, work):
            before = len(native.calls)
            super().seconds(lambda: work() and (PERSISTENT if len(native.calls) > before else GRAPH))
            return self.takes[self.timed[-1]]

    monkeypatch.setattr(choice, "CudaClock", lambda device: (native.clocks.append(Watched(**native.clock)),
                                                             native.clocks[-1])[1])
    return native


@pytest.mark.parametrize("persistent_takes, launches", [(2.0, 1), (4.0, 0)])
def test_auto_measures_on_the_callers_weights_and_takes_the_faster(persistent_takes, launches, auto, arenas, file):
    auto.clock["persistent"] = persistent_takes
    given, weights = op_tests.draw(FIRING, torch.float32), op_tests.layer(FIRING, torch.float32)
    expected = expected_of(FIRING, *given)
    assert_close(run(FIRING, "medium", *given, weights=weights), expected, FP16)
    assert len(auto.calls) == 1 + 9 + launches and len({call["packed"] for call in auto.calls}) == 1
    trial = auto.calls[0]
    assert (trial["slots"], trial["steps"], trial["cell_clip"], bool(trial["fresh_h"])) == (8, 4, 0.3, True)
    before = len(auto.calls)
    assert_close(run(FIRING, "medium", *given, weights=weights), expected, FP16)
    choice._choices = Choices(lambda: file)  # another process
    assert_close(run(FIRING, "medium", *given, weights=weights), expected, FP16)
    assert len(auto.calls) == before + 2 * launches and len(auto.clocks) == 1
    text = "\n".join(doctor.lstm_lines(CPU))
    assert "37 cells, 11 values, float16, 8 slots, less than 8 steps, medium: " in text
    assert f"medium: {choice.PATHS[launches]} (graph 3000000 us, persistent " in text


def test_results_that_differ_are_never_taken(auto, arenas, caplog):
    launch, given = auto.cuda_lstm_run, op_tests.draw(FIRING, torch.float32)
    auto.cuda_lstm_run = lambda **call: launch(**{**call, "cell_clip": 0.29})
    for _ in range(2):
        assert_close(run(FIRING, "medium", *given), expected_of(FIRING, *given), FP16)
    assert len(auto.calls) == 1 and caplog.text.count("its outputs and states differ") == 1


@pytest.mark.parametrize("shape, precision, capturing", [
    ("clips that fire", "highest", False), ("clips that fire", "high", False), ("no projection", "medium", False),
    ("clips that fire", "medium", True)])
def test_where_nothing_is_measured(shape, precision, capturing, auto, arenas, monkeypatch):
    monkeypatch.setattr(choice, "is_capturing", lambda device: capturing)
    run(SHAPES[shape], precision, *op_tests.draw(SHAPES[shape], torch.float32))
    assert not auto.calls and not auto.clocks


def test_a_forced_path(auto, arenas, monkeypatch):
    given = op_tests.draw(FIRING, torch.float32)
    monkeypatch.setenv(choice.VARIABLE, GRAPH)
    run(FIRING, "medium", *given)
    assert not auto.calls
    monkeypatch.setenv(choice.VARIABLE, PERSISTENT)
    run(FIRING, "medium", *given)
    assert len(auto.calls) == 1 and not auto.clocks
    with pytest.raises(RuntimeError, match="path was asked for and does not run here: its operands are 16-bit"):
        run(FIRING, "highest", *given)
    monkeypatch.setenv(choice.VARIABLE, "A")
    with pytest.raises(ValueError, match="ELMO_FAST_CUDA_LSTM: expected one of graph, persistent, got 'A'"):
        run(FIRING, "medium", *given)


def test_what_is_passed_over_is_logged_once(arenas, monkeypatch, caplog):
    monkeypatch.setenv(choice.VARIABLE, "")
    choice._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            run(FIRING, "highest", *op_tests.draw(FIRING, torch.float32))
    assert caplog.text.count("the persistent path is passed over: its operands are 16-bit") == 1


def test_doctor_launches_nothing(auto, monkeypatch):
    text = "\n".join(doctor.lstm_lines(CPU))
    assert "LSTM graph   runs, its small kernels torch operations: Triton has no kernels for cpu (cpu)" in text
    assert "LSTM persistent  runs in 'medium' where it is measured to be faster (cpu)" in text
    assert "nothing is measured here yet" in text and "is set" not in text and not auto.calls
    monkeypatch.setenv(choice.VARIABLE, GRAPH)
    assert "ELMO_FAST_CUDA_LSTM=graph is set" in doctor.lstm_lines(CPU)[-1]
    monkeypatch.setattr(persistent, "native_module", lambda: (None, "because"))
    forget()
    assert "LSTM persistent  not there: because (cpu)" in doctor.lstm_lines(CPU)
