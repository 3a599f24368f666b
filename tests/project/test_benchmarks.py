"""The benchmarks in dry runs, at sizes that measure nothing: results that agree, and none that do not."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import bench_embed, bench_io, bench_table, bench_train, common, latency, models, precisions, workloads
from benchmarks.gpu import host
from benchmarks.peers import layer
from benchmarks.state_policies import main as compare_policies
from elmo_fast.train.export import export_run
from elmo_fast.train.setup import start_or_resume
from tests.support.files import program, python
from tests.support.training import TINY, write_corpus, write_options

RUN = common.ROOT / "benchmarks" / "gpu" / "run.sh"
# processes of xdist time nothing
HERE = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTEST_XDIST_WORKER": ""}
EMBED = "--model tiny --batch-size 3 --batches 3 --peer-batches 1 --rounds 2"
COMMANDS = {
    "embed": (bench_embed, EMBED), "latency": (bench_embed, f"{EMBED} --latency --threads 2"),
    **{workload: (bench_embed, f"{EMBED} --precisions highest --workload {workload.replace(' ', '_')}")
       for workload in workloads.TEXTS},
    "files": (bench_io, "--parts speed stages --models tiny --sentences 20 --rounds 2 --slots 4 --folder ."),
    "memory": (bench_io, "--parts memory --most 40 --models tiny --sentences 20 --rounds 2 --slots 4 --folder ."),
    "tables": (bench_table, ("--model tiny --text-models tiny --batch-size 3 --batches 2 --residues 20 "
                             "--batch-residues 60 --words 90 --reference-words 30 --rounds 2 --precisions highest")),
    "training": (bench_train, ("--model tiny --steps 6 --turn 2 --heldout-rows 4 --threads 1 --train TEXT "
                               "--heldout TEXT")),
    "precisions": (precisions, "--model tiny --sentences 70 --rounds 2"),
    "peers": (layer, "--size tiny --rows 3 17 --rounds 2 --torch-lstm")}


@pytest.fixture
def bench(dry_run, monkeypatch, tmp_path):
    """Run a command: its document, or the error on stderr of a run without a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_embed, "SENTENCE_SECONDS", 0.01)
    monkeypatch.setattr(latency, "SECONDS", 0.01)
    monkeypatch.setattr(workloads, "DOCUMENT_TOKENS", 70)
    monkeypatch.setattr(workloads, "RESIDUES", 50)
    monkeypatch.setitem(bench_train.SIZES, "tiny", (*bench_train.SIZES["tiny"][:5], 7, 28))

    def run(name, *more):
        module, arguments = COMMANDS[name]
        text = write_corpus(tmp_path / "text", sentences=60)[0] if "TEXT" in arguments else ""
        words = (text if word == "TEXT" else word.replace("_", " ") for word in arguments.split())
        return dry_run(module, *words, *more)

    return run


@pytest.mark.parametrize("name", [name if name == "files" else pytest.param(name, marks=pytest.mark.long)
                                  for name in COMMANDS])
def test_a_command_has_results_that_agree(name, bench):
    document = bench(name)
    assert document["results"] and document["machine"]["cpu"]["model"]
    for row in document["results"]:
        assert row.get("error", 0) <= row.get("limit", 1)
        assert row.get("p20", 0) <= row.get("median", 0) <= row.get("p80", 0)


@pytest.mark.parametrize("name, more, message", [
    ("embed", ["--precisions", "highest"], "batches in highest against reference: relative error"),
    ("files", [], "tiny, the engine against reference: relative error"),
    ("tables", ["--lines", "text"], "text in tiny: largest difference from the path without a table")])
def test_a_disagreement_ends_the_run(name, more, message, bench, monkeypatch):
    build, seeds = models.build, itertools.count()
    monkeypatch.setattr(models, "build", lambda size, **settings: build(size, **{**settings, "seed": next(seeds)}))
    assert message in bench(name, *more)


@pytest.mark.long
def test_single_ops_give_rows(tmp_path):
    pytest.importorskip("pytest_benchmark")
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "benchmarks/bench_ops", "--benchmark-only", "-k",
           "test_projected_lstm and small and b1 and torch", "--benchmark-min-rounds=2", "--rows",
           tmp_path / "ops.json", timeout=100, PYTEST_XDIST_WORKER="")  # xdist's processes time nothing
    row, = json.loads((tmp_path / "ops.json").read_text())["results"]
    assert (row["model"], row["variant"]) == ("small", "torch") and 0 <= row["error"] <= row["limit"]


@pytest.mark.long
def test_state_policies_agree_where_they_must(tmp_path):
    train, vocabulary = write_corpus(tmp_path / "text", sentences=60)
    start_or_resume(tmp_path / "run", train=[train], vocab=str(vocabulary), max_steps=30, quiet=True,
                    options_file=write_options(tmp_path / "o.json", TINY))
    export_run(tmp_path / "run", tmp_path / "model", softmax=True)
    text = tmp_path / "one.txt"
    text.write_text("ka lo mi\npo ru\nka ka\n")
    report = compare_policies([str(tmp_path / "model"), str(text), "--output", str(tmp_path / "r.json")])
    assert report["zero"]["loss"] == pytest.approx(report["carry"]["loss"])  # one batch: carried starts from zeros too
    assert report["zero"]["distance_from_carried"] == 0 < report["warm"]["distance_from_carried"]


def run(*arguments, **environment):
    return subprocess.run([RUN, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env=HERE | {name: str(value) for name, value in environment.items()})


@pytest.mark.long
def test_the_stages_of_a_gpu_run_on_the_cpu(tmp_path):
    """No result has a path of this machine."""
    process = run("--dry-run", "--out", tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    folder = tmp_path / "dry-run"
    for name in ("steps", "ceilings", "lstm", "encoder", "embed-original"):
        document = json.loads((folder / f"{name}.json").read_text())
        for path in (common.ROOT, Path.home(), tmp_path, sys.prefix):
            assert f"{path}/" not in json.dumps(document)
        for case in document["results"]:
            assert 0 < case["p20"] <= case["median"] <= case["p80"]
            assert case.get("error", 0) <= case.get("limit", 0)
    assert [line.split(": ")[:2] for line in (folder / "stages.txt").read_text().splitlines()] == [
        [stage, "exit 0"] for stage in ("doctor", "steps", "ceilings", "lstm", "encoder", "text")]


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


def test_a_machine_without_a_gpu_is_named(tmp_path):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    process = run("--out", tmp_path / "out")
    assert process.returncode == 2 and "no NVIDIA GPU answers nvidia-smi; --dry-run" in process.stderr
    assert not list(tmp_path.iterdir())


def test_the_hosts_time_is_that_of_both_streams(dry_run):
    document = dry_run(host, "--sentences", 30, "--rounds", 2)
    assert [case["way"] for case in document["results"]] == ["slots of 64", "slots of 512"]
    assert all(0 < case["p20"] <= case["median"] for case in document["results"])
