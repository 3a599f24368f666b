"""Verdicts on GPU kernels, with stand-ins for the child: whatever a child does, kernels run only after a pass."""

import contextlib
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops import trial
from elmo_fast.ops.device import synchronize_stream
from elmo_fast.ops.trial import Trials
from tests.support.grid import mostly_long

GPU = torch.device("cuda", 0)
FAMILY = "persistent 37 11"
# Programs whose arguments are the family, the device and the verdict's name; each run is a line in the file `runs`.
RUN = "import os, sys, time; print(os.getpid(), file=open('runs', 'a')); "
PASS = RUN + "print('some line'); print('passed', sys.argv[3])"


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """A GPU that PyTorch knows the name of."""
    monkeypatch.setenv(trial.VARIABLE, "wait")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Stand-in {index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))


@pytest.fixture
def started(tmp_path):
    """Make the trials of a process, whose child is a program, with verdicts in one folder."""
    def start(program=PASS, limit=60.0, command=(sys.executable, "-I", "-S", "-c")):
        return Trials([*command, program], limit, tmp_path / "verdicts")

    return start


def runs(folder):
    """Process ids of the children that ran."""
    path = folder / "verdicts" / "runs"
    return list(map(int, path.read_text().split())) if path.exists() else []


def content(trials, family=FAMILY):
    return json.loads(trials.path(GPU, family).read_text())


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in open(f"/proc/{process}/status").read() if os.path.exists("/proc") else True


def test_a_family_that_passes_runs(started, tmp_path):
    assert [started().why_not(GPU, FAMILY) for _ in range(3)] == [None] * 3 and len(runs(tmp_path)) == 1
    assert started().why_not(torch.device("cpu"), FAMILY) is None
    assert started().describe(GPU, FAMILY) == "passed"
    assert started().describe(GPU, "highway") == "not tried yet: elmo-fast doctor --gpu tries it"


@pytest.mark.parametrize("program, limit, reason", mostly_long([
    ("sys.exit(139)", 60, "exit status 139"), ("print('passed', sys.argv[3], flush=True); time.sleep(600)", 0.7,
                                               "no end after 0.7 s"),
    ("os.kill(os.getpid(), 11)", 60, "exit status -11"),
    ("raise ValueError('bad\\n  numbers')", 60, "exit status 1: numbers"), ("", 60, "no result, but ''"),
    ("print(os.urandom(10**5), flush=True); os.write(1, os.urandom(10**5))", 60, "no result, but"),
    ("print('passed another')", 60, "no result, but 'passed another'"),
    ("print('passed', sys.argv[3], flush=True); os.abort()", 60, "exit status -6")], quick=2))
def test_a_family_that_fails_never_runs(program, limit, reason, started, tmp_path, caplog):
    trials = started(RUN + program, limit)
    for _ in range(3):
        assert f"its trial on this GPU failed: {reason}" in trials.why_not(GPU, FAMILY)
    assert caplog.text.count(f"replace the GPU kernels {FAMILY}: its trial on this GPU failed: {reason}") == 1
    assert reason in started().why_not(GPU, FAMILY)
    path = trials.path(GPU, FAMILY)
    assert content(trials)["state"] == "failed" and str(path) in trials.describe(GPU, FAMILY)
    (child,) = runs(tmp_path)
    assert not is_alive(child)
    path.unlink()
    assert started().why_not(GPU, FAMILY) is None


@pytest.mark.parametrize("program, command, reason", [
    ("print('out of memory', file=sys.stderr); sys.exit(75)", None, "its trial could not begin: out of memory"),
    ("", ("/there/is/none",), "its trial cannot be started")])
def test_a_trial_that_cannot_begin_says_nothing_of_the_kernels(program, command, reason, started):
    trials = started(RUN + program) if command is None else started(program, command=command)
    assert reason in trials.why_not(GPU, FAMILY) and reason in trials.describe(GPU, FAMILY)
    assert started().why_not(GPU, FAMILY) is None


def test_the_first_call_does_not_wait(started, tmp_path, monkeypatch):
    monkeypatch.setenv(trial.VARIABLE, "auto")
    trials = started(RUN + "\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('passed', sys.argv[3])")
    assert "has not ended" in trials.why_not(GPU, FAMILY)
    other, path = started(), tmp_path / "verdicts" / "go"
    assert "has not ended" in other.why_not(GPU, FAMILY)
    path.touch()
    with trial.waiting():
        assert trials.why_not(GPU, FAMILY) is other.why_not(GPU, FAMILY) is None
    assert len(runs(tmp_path)) == 1


def test_processes_at_once_share_one_trial(started, tmp_path):
    processes = [started(RUN + "time.sleep(0.3); print('passed', sys.argv[3])") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda each: each.why_not(GPU, FAMILY), processes))
    assert found == [None] * 3 and len(runs(tmp_path)) == 1


def test_a_supervisor_that_dies_counts_as_a_failure(started, tmp_path):
    trials = started(RUN + "os.kill(os.getppid(), 9)")
    assert "its trial left no verdict (exit status -9)" in trials.why_not(GPU, FAMILY)
    assert content(trials)["state"] == "running" and trials.describe(GPU, FAMILY).startswith("running: since 2")
    assert "failed: the process or the machine went down" in started().why_not(GPU, FAMILY)
    assert len(runs(tmp_path)) == 1


@pytest.mark.parametrize("text", mostly_long([
    '{"state": "running", "reason": ""}', "", "{", "[]", '{"state": "passed"}', '{"state": 1, "reason": 2}', "\0" * 99,
    '{"state": "passed", "reason": "", '], quick=2))
def test_a_file_that_is_no_verdict_counts_as_a_failure(text, started, tmp_path):
    """Also `running` in a file of before a restart of the machine."""
    path = started().path(GPU, FAMILY)
    path.parent.mkdir()
    path.write_text(text)
    assert started().describe(GPU, FAMILY).split(":")[0] in ("damaged", "running")
    assert "failed: the process or the machine went down" in started().why_not(GPU, FAMILY)
    assert not runs(tmp_path) and content(started())["state"] == "failed"


@pytest.mark.parametrize("place", ["file", "/proc/self"])
def test_without_a_folder_for_verdicts_no_kernel_runs(place, tmp_path, caplog):
    (tmp_path / "file").touch()
    trials = Trials([sys.executable, "-c", PASS], 60.0, tmp_path / place / "verdicts")
    for _ in range(2):
        assert "needs a directory that can be written" in trials.why_not(GPU, FAMILY)
    assert caplog.text.count("needs a directory that can be written") == 1


def test_the_variable(started, tmp_path, monkeypatch):
    trials = started()
    for value, reason in (("off", None), ("never", "ELMO_FAST_GPU_TRIAL=never is set")):
        monkeypatch.setenv(trial.VARIABLE, value)
        assert trials.why_not(GPU, FAMILY) == reason
    monkeypatch.setenv(trial.VARIABLE, "on")
    with pytest.raises(ValueError, match="ELMO_FAST_GPU_TRIAL: expected one of auto, wait, off, never, got 'on'"):
        trials.why_not(GPU, FAMILY)
    assert not runs(tmp_path)


def test_every_family_and_gpu_has_its_verdict(started, tmp_path):
    fails = started(RUN + "sys.exit(1)")
    for device, family in ((GPU, FAMILY), (GPU, "highway"), (torch.device("cuda", 1), FAMILY)):
        assert fails.why_not(device, family)
    assert len(runs(tmp_path)) == 3
    assert started().why_not(GPU, "char_cnn") is None


FAULT = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"


def test_after_a_fault_the_families_that_ran_count_as_failed(started):
    trials = started()
    assert trials.why_not(GPU, FAMILY) is trials.why_not(GPU, "highway") is None
    with pytest.raises(RuntimeError, match=f"^{FAULT}\nStart the program again: .*{FAMILY}, highway"), \
            trials.watching(GPU):
        raise RuntimeError(FAULT)
    for family in (FAMILY, "highway"):
        assert all("illegal memory access" in each.why_not(GPU, family) for each in (trials, started()))
    assert started().why_not(GPU, "captures") is None


def test_a_fault_is_noticed_where_the_host_waits(started, monkeypatch):
    def synchronize():
        raise RuntimeError(FAULT)

    trials = started()
    assert trials.why_not(GPU, FAMILY) is None
    monkeypatch.setattr(trial, "trials", trials)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=synchronize))
    with pytest.raises(RuntimeError, match="Start the program again"):
        synchronize_stream(GPU)
    assert "illegal memory access" in started().why_not(GPU, FAMILY)


@pytest.mark.parametrize("error", [
    RuntimeError("CUDA error: device-side assert triggered"), RuntimeError("an illegal argument"),
    torch.OutOfMemoryError("CUDA out of memory."), ValueError(FAULT), RuntimeError("CUDA error: out of memory")])
def test_other_errors_say_nothing_of_the_kernels(error, started):
    trials, message = started(), str(error)
    assert trials.why_not(GPU, FAMILY) is None
    with pytest.raises(type(error)) as caught, trials.watching(GPU):
        raise error
    assert str(caught.value) == message and started().why_not(GPU, FAMILY) is None


def test_a_fault_of_a_process_that_used_no_kernels_is_not_ours(started):
    with pytest.raises(RuntimeError) as caught, started().watching(GPU):
        raise RuntimeError(FAULT)
    assert str(caught.value) == FAULT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no processes of its kind")
def test_the_trial_goes_on_after_the_caller(started, tmp_path):
    """A caller that ends, also by Ctrl-C in its terminal, leaves the trial alone."""
    program = RUN + "time.sleep(0.5); print('passed', sys.argv[3])"
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.environ[trial.VARIABLE] = "auto"
        started(program).why_not(GPU, FAMILY)
        time.sleep(60)
    end = time.monotonic() + 60
    while not runs(tmp_path) and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert started().why_not(GPU, FAMILY) is None and len(runs(tmp_path)) == 1


@pytest.mark.long  # imports torch in the child
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_the_command_itself_on_a_machine_without_a_gpu(tmp_path):
    trials = Trials(folder=tmp_path / "verdicts")
    assert trials.why_not(GPU, "highway").startswith("its trial could not begin: ")
    assert content(trials, "highway")["state"] == "postponed"
