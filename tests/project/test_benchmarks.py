"""The GPU benchmarks in dry runs, at sizes that measure nothing: their results, and what a failed stage leaves."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.gpu import predict
from tests.support.files import program
from tests.support.ptx_machine import machine

RUN = common.ROOT / "benchmarks" / "gpu" / "run.sh"
# in a process of xdist nothing is timed
HERE = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "PYTEST_XDIST_WORKER": ""}


def run(*arguments, **environment):
    return subprocess.run([RUN, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env=HERE | {name: str(value) for name, value in environment.items()})


@pytest.mark.long
def test_a_dry_run_times_what_agrees(tmp_path):
    """And no result has a path of this machine."""
    done = run("--dry-run", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder, found = tmp_path / "dry-run", {}
    for name in ("steps", "ceilings", "lstm", "encoder", "embed-original", "training"):
        document = json.loads((folder / f"{name}.json").read_text())
        assert document["machine"]["cpu"]["model"] and document["date"].endswith("Z")
        assert document["schema"] == common.SCHEMA
        for path in (common.ROOT, Path.home(), tmp_path, sys.prefix):
            assert f"{path}/" not in json.dumps(document)
        found[name] = document["results"]
        for case in found[name]:
            assert 0 < case["p20"] <= case["median"] <= case["p80"]
            assert case["way"].startswith("ceiling") or name == "steps" or case["tokens_per_s"] > 0
            assert case.get("error", 0) <= case.get("limit", 0)
    assert [line.split(": ")[:2] for line in (folder / "stages.txt").read_text().splitlines()] == [
        [stage, "exit 0"] for stage in ("doctor", "steps", "ceilings", "lstm", "encoder", "text", "training")]
    assert [case["slots"] for case in found["steps"]] == [1, 8, 16, 32, 64, 256, 1024]
    assert {(case["variant"], case["gates"]) for case in found["steps"]} == {("graph", "cuBLAS")}
    assert all(case["times_as_fast_as"] == "plain steps" and "error" in case for case in found["training"])
    assert {(case["variant"], case["precision"]) for case in found["lstm"]} == {
        ("graph", precision) for precision in ("highest", "high", "medium")}
    assert all("error" in case and case["us_per_layer_step"] > 0 for case in found["lstm"])
    assert all(case.get("tflop_per_s", case.get("gb_per_s")) > 0 for case in found["ceilings"])
    assert {case["way"] for case in found["embed-original"]} == {"slots of 4", "one batch of 4", "one sentence"}


def ops(tmp_path, *arguments, plugin=""):
    """A run of the cases in gpu/ with a plugin: what pytest printed, and the document."""
    (tmp_path / "plugin.py").write_text(plugin)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "plugin", "benchmarks/gpu",
               "--benchmark-min-rounds=2", "--rows", tmp_path / "rows.json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=common.ROOT, env=HERE | {
        "PYTHONPATH": f"{common.ROOT}{os.pathsep}{tmp_path}"})
    rows = tmp_path / "rows.json"
    return done, json.loads(rows.read_text()) if rows.exists() else None


@pytest.mark.long
def test_a_path_that_is_wrong_is_not_timed(tmp_path):
    done, document = ops(tmp_path, "-k", "test_lstm and graph and 25-1]", plugin="""
import torch
from tests.support import cuda_ops
right = cuda_ops.projected_lstm
def wrong(*operands, precision, **settings):
    out, state = right(*operands, precision=precision, **settings)
    return (out * (1.1 if precision == "medium" else 1)), state
cuda_ops.projected_lstm = wrong
""")
    assert done.returncode == 1
    assert {case["precision"] for case in document["results"]} == {"highest", "high"}
    refused = document["settings"]["not_timed"]
    assert len(refused) == 2 and all("graph in medium against float64: relative error" in said and "medium" in name
                                     for name, said in refused.items())


@pytest.mark.long
@pytest.mark.parametrize("noise", [0, 1])
def test_the_persistent_path_must_repeat_its_bits(tmp_path, noise):
    """Its PTX runs on the CPU; where a result changes from call to call, that is recorded and the case fails."""
    machine()  # skips where it cannot be built
    done, document = ops(tmp_path, "-k", "test_steps and persistent-8]", plugin=f"""
import itertools
import pytest
from elmo_fast.ops.projected_lstm.cuda import persistent
from tests.support.lstm_on_ptx import lstm_on_ptx
on_ptx, right, calls = lstm_on_ptx("sm_90", pytest.MonkeyPatch()), persistent.launch, itertools.count()
def launch(*arguments):
    done = right(*arguments)
    arguments[-1][0, 0] += 1e-6 * {noise} * next(calls)
    return done
native, persistent.launch = on_ptx.__enter__(), launch
""")
    (case,) = document["results"]
    assert done.returncode == noise and ("gave other bits for the same inputs" in done.stdout) == bool(noise)
    assert (case["variant"], case["same_bits"], "predicted_us" in case) == ("persistent", not noise, False)


@pytest.mark.long
def test_cases_without_time_are_skipped(tmp_path):
    done, document = ops(tmp_path, "-k", "ceiling", "--seconds", "0")
    assert done.returncode == 0 and document["results"] == []
    assert len(document["settings"]["not_timed"]) == 5
    assert all("no time is left of 0 s" in said for said in document["settings"]["not_timed"].values())


@pytest.mark.long
def test_a_gpu_that_is_not_there_ends_the_run(tmp_path):
    done, document = ops(tmp_path, "-k", "ceiling", "--device", "cuda")
    if "5 passed" in done.stdout:
        pytest.skip("this machine has a GPU")
    assert (done.returncode, document) == (2, None) and "torch sees no CUDA device" in done.stdout


STAGES = ["micro", "install", "doctor", "tests", "steps", "ncu", "ceilings", "lstm", "encoder", "text", "training",
          "sanitizer", "sanitizer"]


def gpu_run(tmp_path, works: str, **environment):
    """The stages of a GPU, with programs in place of what they run: the exit status, and the lines of stages.txt.

    `works` is what a stage does after it has said what it was told, by the patterns of a case statement.
    """
    program(tmp_path / "nvidia-smi", "echo NVIDIA H100 80GB HBM3; echo NVIDIA H200")
    program(tmp_path / "ncu", "")
    program(tmp_path / "timeout", f'shift 2; {shutil.which("timeout")} -k 1 2 "$0.py" "$@"')
    program(tmp_path / "timeout.py", f'echo "$@"; case "$*" in {works} esac')
    done = run("--allennlp", tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", OUT=tmp_path / "out",
               **environment)
    lines = (tmp_path / "out" / "h100-80gb-hbm3" / "stages.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == STAGES
    return done.returncode, [line.split(": ", 2)[1:] for line in lines]


@pytest.mark.long
def test_a_stage_that_hangs_or_fails_loses_no_others(tmp_path):
    """Up to one that hangs; all that they print is kept."""
    began = time.monotonic()
    status, found = gpu_run(tmp_path, "*doctor*) exit 3 ;; *ceiling*) sleep 60 & wait ;;")
    assert status == 1 and time.monotonic() - began < 50
    failed = {"doctor": "exit 3", "ceilings": "exit 124"}
    assert [status for status, _ in found] == [failed.get(name, "exit 0") for name in STAGES]
    for (_, command), words in zip(found, (
            "micro.jsonl", "", "doctor", "-m gpu", "--seconds 48", "persistent_kernel", "--device cuda", "--seconds 56",
            "encoder and original", f"--allennlp {tmp_path}", "--seconds 32", "memcheck", "racecheck")):
        assert words in command
    log = (tmp_path / "out" / "h100-80gb-hbm3" / "log.txt").read_text()
    assert all(command in log for _, command in found) and "--no-index" in log


def test_stages_get_no_more_than_the_time_that_is_left(tmp_path):
    """Of 530 seconds, on a clock of which each reading takes 36."""
    program(tmp_path / "date", 'echo $(($(cat "$0.now") + 36)) >"$0.later"; mv "$0.later" "$0.now"; cat "$0.now"')
    (tmp_path / "date.now").write_text("0")
    status, found = gpu_run(tmp_path, "")
    assert status == 1 and [status for status, _ in found] == ["exit 0"] * 10 + ["exit 1"] * 3
    assert {said for _, said in found[-3:]} == {"not started: no time is left"}
    log = (tmp_path / "out" / "h100-80gb-hbm3" / "log.txt").read_text()
    assert all(f"== {stage} s)\n" in log for stage in ("micro (at most 40", "encoder (at most 40", "text (at most 21"))


@pytest.mark.parametrize("arguments, message", [
    (["--stage", "nope"], "--stage: no stage nope"), (["--out"], "--out: expected an argument"),
    (["--nonsense"], "unknown argument --nonsense"), (["--allennlp", "/no/such/folder"], "/no/such/folder"),
    ([], "no NVIDIA GPU answers nvidia-smi; --dry-run")])
def test_run_refuses(arguments, message, tmp_path):
    """Wrong arguments, and a machine without a GPU; nothing is written."""
    if not arguments and shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    done = run("--out", tmp_path / "out", *arguments)
    assert done.returncode == 2 and message in done.stderr and not list(tmp_path.iterdir())


def test_a_prediction_adds_up():
    """Counts of round numbers on a chip of round rates."""
    chip = predict.Chip("made up", hbm=1e12, l2=2e12, mma=4e12, shared=1e11, barrier=1e-6, special=1e9, l2_latency=2e-7,
                        cluster_latency=3.5e-7)
    counts = dict(blocks=100, mma=1000, wavefronts=100_000, ideal=90_000, weight_sectors=125_000,
                  exchange_sectors=31_250, input_sectors=31_250, z_bytes=100, cluster_bytes=1_000_000, special=2500,
                  barriers=2, rounds=4, cluster_rounds=2)
    found = predict.predict(counts, chip)
    parts = {"products": 1.024, "shared": 1.28, "weights": 2.0, "exchange": 1.0, "inputs": 0.5, "special": 0.8,
             "waits": 3.5}
    assert {name: 1e6 * found[name] for name in parts} == pytest.approx(parts)
    assert 1e6 * found["work"] == pytest.approx(2.0 + 1.0 + 0.5 + 0.8)
    assert 1e6 * found["in_antiphase"] == pytest.approx(3.5 + 4.3 / 2)  # waits of one direction, work of the other
    assert 1e6 * found["in_phase"] == pytest.approx(3.5 + 4.3)
    streamed = predict.predict(counts | {"weight_sectors": 1_000_000}, chip)
    assert 1e6 * streamed["in_antiphase"] == pytest.approx(streamed["work"] * 1e6) == pytest.approx(18.3)
    assert predict.predict(counts | {"z_bytes": 10**6}, chip)["inputs"] == pytest.approx(1e-6)
    for slots in predict.SLOTS:
        best, worst = predict.predicted_us("NVIDIA H100 80GB HBM3", slots)
        assert 0 < best < worst
    assert predict.predicted_us("NVIDIA H100", 3) is None and predict.predicted_us("NVIDIA A100", 1) is None


def test_counts_of_a_step_are_told_apart_by_opcode():
    def fields(**given):
        return dict.fromkeys(("executed", "threads", "bytes", "sectors", "wavefronts", "ideal"), 0) | given

    opcodes = {
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": fields(executed=10),
        "ld.global.nc.v4.u16": fields(sectors=3),
        "ld.shared.v2.u32": fields(wavefronts=7, ideal=5), "ld.global.nc.L1::no_allocate.v4.u32": fields(sectors=16),
        "ld.global.cg.v2.f32": fields(sectors=4), "st.global.u32": fields(sectors=5),
        "ld.acquire.gpu.global.u32": fields(sectors=99), "ld.relaxed.gpu.global.u32": fields(sectors=99),
        "cp.async.cg.shared.global": fields(sectors=6, wavefronts=2, ideal=2),
        "cp.async.bulk.shared::cluster.global.mbarrier": fields(sectors=7, bytes=1792),
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32": fields(bytes=512, wavefronts=4, ideal=4),
        "red.release.gpu.global.add.u32": fields(executed=8), "ex2.approx.ftz.f32": fields(executed=5),
        "rcp.approx.ftz.f32": fields(executed=6), "rcp.rn.f32": fields(executed=90)}
    assert predict.classified(opcodes, blocks=2, z_bytes=100, rounds=4, cluster_rounds=1) == dict(
        blocks=2, mma=10, wavefronts=9, ideal=7, weight_sectors=16, exchange_sectors=22, input_sectors=3, z_bytes=100,
        cluster_bytes=512, special=11, barriers=2, rounds=4, cluster_rounds=1)
