"""The GPU benchmarks in dry runs, at sizes that measure nothing: their results, also after a failed stage."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.gpu import host
from tests.support.files import program

RUN = common.ROOT / "benchmarks" / "gpu" / "run.sh"
# processes of xdist time nothing
HERE = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTEST_XDIST_WORKER": ""}


def run(*arguments, **environment):
    return subprocess.run([RUN, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env=HERE | {name: str(value) for name, value in environment.items()})


@pytest.mark.long
def test_a_dry_run_times_results_that_agree(tmp_path):
    """No result has a path of this machine."""
    process = run("--dry-run", "--out", tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    folder, results = tmp_path / "dry-run", {}
    for name in ("steps", "ceilings", "lstm", "encoder", "embed-original"):
        document = json.loads((folder / f"{name}.json").read_text())
        assert document["machine"]["cpu"]["model"] and document["date"].endswith("Z")
        assert document["schema"] == common.SCHEMA
        for path in (common.ROOT, Path.home(), tmp_path, sys.prefix):
            assert f"{path}/" not in json.dumps(document)
        results[name] = document["results"]
        for case in results[name]:
            assert 0 < case["p20"] <= case["median"] <= case["p80"]
            assert case["way"].startswith("ceiling") or name == "steps" or case["tokens_per_s"] > 0
            assert case.get("error", 0) <= case.get("limit", 0)
    assert [line.split(": ")[:2] for line in (folder / "stages.txt").read_text().splitlines()] == [
        [stage, "exit 0"] for stage in ("doctor", "steps", "ceilings", "lstm", "encoder", "text")]
    assert [case["slots"] for case in results["steps"]] == [1, 8, 16, 32, 64, 256, 1024]
    assert {case["variant"] for case in results["steps"]} == {"graph"}
    assert {(case["variant"], case["precision"]) for case in results["lstm"]} == {
        ("graph", precision) for precision in ("highest", "high", "medium")}
    assert all("error" in case and case["us_per_layer_step"] > 0 for case in results["lstm"])
    assert all(case.get("tflop_per_s", case.get("gb_per_s")) > 0 for case in results["ceilings"])
    assert {case["way"] for case in results["embed-original"]} == {"slots of 4", "one batch of 4", "one sentence"}


def ops(tmp_path, *arguments, plugin=""):
    """Run the cases in gpu/ with a plugin: the process, and the document."""
    (tmp_path / "plugin.py").write_text(plugin)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "plugin", "benchmarks/gpu",
               "--benchmark-min-rounds=2", "--rows", tmp_path / "rows.json", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=common.ROOT, env=HERE | {
        "PYTHONPATH": f"{common.ROOT}{os.pathsep}{tmp_path}"})
    rows = tmp_path / "rows.json"
    return process, json.loads(rows.read_text()) if rows.exists() else None


@pytest.mark.long
def test_a_path_that_is_wrong_is_not_timed(tmp_path):
    process, document = ops(tmp_path, "-k", "test_lstm and graph and 25-1]", plugin="""
import torch
from tests.support import cuda_ops
right = cuda_ops.projected_lstm
def wrong(*operands, precision, **settings):
    out, state = right(*operands, precision=precision, **settings)
    return (out * (1.1 if precision == "medium" else 1)), state
cuda_ops.projected_lstm = wrong
""")
    assert process.returncode == 1
    assert {case["precision"] for case in document["results"]} == {"highest", "high"}
    messages = document["settings"]["not_timed"]
    assert len(messages) == 2 and all("graph in medium against float64: relative error" in message and "medium" in name
                                      for name, message in messages.items())


STAGES = ["micro", "install", "doctor", "tests", "steps", "ncu", "ceilings", "lstm", "encoder", "text", "sanitizer",
          "sanitizer", "fenced", "fenced-steps"]


def gpu_run(tmp_path, works: str, **environment):
    """Run the stages of a GPU with stand-in programs: the exit status, and the lines of stages.txt.

    `works` has the branches of a case statement: the action of a stage after it has printed its arguments.
    """
    program(tmp_path / "nvidia-smi", "echo NVIDIA H100 80GB HBM3; echo NVIDIA H200")
    program(tmp_path / "ncu", "")
    program(tmp_path / "timeout", f'shift 2; {shutil.which("timeout")} -k 1 2 "$0.py" "$@"')
    program(tmp_path / "timeout.py", f'echo "$@"; case "$*" in {works} esac')
    process = run("--allennlp", tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", OUT=tmp_path / "out",
                  **environment)
    lines = (tmp_path / "out" / "h100-80gb-hbm3" / "stages.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == STAGES
    return process.returncode, [line.split(": ", 2)[1:] for line in lines]


@pytest.mark.long
def test_a_stage_that_hangs_or_fails_does_not_end_the_others(tmp_path):
    """A stage that hangs is ended, and the output of all stages is kept."""
    began = time.monotonic()
    status, stages = gpu_run(tmp_path, "*doctor*) exit 3 ;; *ceiling*) sleep 60 & wait ;;")
    assert status == 1 and time.monotonic() - began < 50
    failed = {"doctor": "exit 3", "ceilings": "exit 124"}
    assert [status for status, _ in stages] == [failed.get(name, "exit 0") for name in STAGES]
    for (_, command), words in zip(stages, (
            "micro.jsonl", "", "doctor", "-m gpu", "--seconds 48", "persistent_kernel", "--device cuda", "--seconds 56",
            "encoder and original", f"--allennlp {tmp_path}", "memcheck", "racecheck",
            "-DELMO_FAST_FENCED_READS", "--seconds 32")):
        assert words in command
    log = (tmp_path / "out" / "h100-80gb-hbm3" / "log.txt").read_text()
    assert all(command in log for _, command in stages) and "--no-index" in log


@pytest.mark.parametrize("arguments, message", [
    (["--stage", "nope"], "--stage: no stage nope"), (["--out"], "--out: expected an argument"),
    (["--nonsense"], "unknown argument --nonsense"), (["--allennlp", "/no/such/folder"], "/no/such/folder"),
    ([], "no NVIDIA GPU answers nvidia-smi; --dry-run")])
def test_run_refuses(arguments, message, tmp_path):
    """Wrong arguments and a machine without a GPU are refused, and nothing is written."""
    if not arguments and shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    process = run("--out", tmp_path / "out", *arguments)
    assert process.returncode == 2 and message in process.stderr and not list(tmp_path.iterdir())


def test_the_hosts_time_is_that_of_both_streams(dry_run):
    document = dry_run(host, "--sentences", 30, "--rounds", 2)
    assert [case["way"] for case in document["results"]] == ["slots of 64", "slots of 512"]
    assert all(0 < case["p20"] <= case["median"] for case in document["results"])
