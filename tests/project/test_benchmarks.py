"""The GPU benchmarks in dry runs, at sizes that measure nothing: their results, and what a failed stage leaves."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import bench_embed, common
from benchmarks.gpu import predict, run, stages
from tests.support import cuda_ops

RUN = common.ROOT / "benchmarks" / "gpu" / "run.sh"


@pytest.mark.long
def test_a_run_with_a_broken_stage(tmp_path, monkeypatch):
    """It leaves the results of the other stages, in which every timing stands behind a check, and no path."""
    monkeypatch.setattr(stages, "ceilings", lambda stage: stage.add(case="first", value=1) and 1 / 0)
    monkeypatch.setattr(bench_embed, "SENTENCE_SECONDS", 0.01)
    assert run.main(["--dry-run", "--out", str(tmp_path)]) == 1
    assert [file.name for file in (tmp_path / "dry-run").iterdir()] == ["run.json"]
    document = json.loads((tmp_path / "dry-run" / "run.json").read_text())
    assert document["machine"]["cpu"]["model"] and document["machine"]["torch"]
    assert document["date"].endswith("Z") and document["schema"] == common.SCHEMA
    for path in (common.ROOT, Path.home(), tmp_path, sys.prefix):
        assert f"{path}/" not in json.dumps(document)
    of_stage = document["stages"]
    assert list(of_stage) == list(run.STAGES)
    broken = of_stage.pop("ceilings")
    assert broken["status"] == "failed" and broken["results"] == [{"case": "first", "value": 1}]
    assert broken["error"] == "ZeroDivisionError: division by zero"
    assert all(found["status"] == "complete" and found["results"] for found in of_stage.values()), of_stage
    for name, key in (("lstm", ("path", "precision")), ("text", ("precision",)), ("encoder", ("backend", "precision"))):
        cases = [case for case in of_stage[name]["results"]
                 if case.get("variant") != "reference" and "skipped" not in case]
        checked = {tuple(case[each] for each in key) for case in cases
                   if case.get("passed") and case.get("error", 0) <= case["limit"]}
        timed = [case for case in cases if "median" in case]
        assert timed and {tuple(case[each] for each in key) for case in timed} == checked
        assert {case["precision"] for case in timed} == {"highest", "high", "medium"}
        for case in timed:
            assert 0 < case["p20"] <= case["median"] <= case["p80"] and case["tokens_per_s"] > 0
    assert {case["way"] for case in of_stage["text"]["results"] if "way" in case} == {
        "slots of 4", "one batch of 4", "one sentence", "from ids on the device"}
    assert all(case["clipped_c"] > 0 for case in of_stage["lstm"]["results"] if case.get("part") == "check")


def test_a_path_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(cuda_ops, "projected_lstm", lambda inputs, rows, schedule, state, weights, **settings: (
        torch.zeros(rows.shape[1], 2 * inputs.shape[1]), state))
    monkeypatch.setattr(stages, "why_not", lambda device, path: None)
    dry = run.Stage(20, dry_run=True)
    assert dry.run(stages.lstm) == 1
    assert {(case["path"], case["precision"]) for case in dry.results} == {
        ("graph", "highest"), ("graph", "high"), ("graph", "medium"), ("persistent", "medium")}
    assert not any("median" in case or case["passed"] for case in dry.results)
    assert dry.document["error"] == "4 of 4 cases failed" and "ELMO_FAST_CUDA_LSTM" not in os.environ


@pytest.mark.parametrize("said, passed", [
    ("done\n========= ERROR SUMMARY: 0 errors\n", True),
    ("done\n========= Invalid read\n========= ERROR SUMMARY: 1 error\n", False),
    ("========= ERROR SUMMARY: 0 errors\n", False),
    ("done\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", True),
    ("done\n========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", False),
    ("Device not supported\n", False),
    ("skipped: it needs compute capability 8.0\n========= ERROR SUMMARY: 0 errors\n", None),
])
def test_what_the_sanitizer_says(said, passed):
    found = stages.verdict(said.splitlines())
    assert found.get("passed") is passed
    assert ("skipped" in found) == (passed is None) and ("log" in found) == (passed is False)


def test_a_stage_that_hangs_is_ended_and_keeps_its_cases(tmp_path):
    """With all that it started."""
    began, part = time.monotonic(), tmp_path / "part"
    script = f"echo '{{\"results\": [1]}}' >{part}; echo out; echo {tmp_path}/err >&2; sleep 60 & wait"
    status, log = run.run_apart(["sh", "-c", script], 1.0)
    assert time.monotonic() - began < 20 and log[0] == "out" and str(tmp_path) not in log[1]
    assert run.result(status, log, part) == {"status": "timed out", "exit": status, "results": [1], "log": log}
    found = run.result(*run.run_apart(["sh", "-c", "exit 3"], 5.0), part)
    assert found == {"status": "failed", "exit": 3, "results": [], "log": []}


@pytest.mark.long
def test_a_stage_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    """As far as it comes where nvidia-smi answers and torch sees no GPU."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H100 80GB HBM3\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable,
                   "OMP_NUM_THREADS": "1"}
    done = subprocess.run([RUN, "--stage", "lstm", "--out", tmp_path], capture_output=True, text=True, timeout=100,
                          env=environment)
    found = json.loads((tmp_path / "h100-80gb-hbm3" / "lstm.json").read_text())
    assert done.returncode == 1 and found["machine"]["torch"] and list(found["stages"]) == ["lstm"]
    assert found["stages"]["lstm"]["error"] == "RuntimeError: torch sees no CUDA device; --dry-run runs without one"
    assert found["stages"]["lstm"]["exit"] == 1 and found["stages"]["lstm"]["log"]


def test_cases_that_raise_are_recorded(tmp_path):
    dry = run.Stage(20, dry_run=True, file=tmp_path / "part")
    dry.attempt(lambda: 1 / 0, case="bad")
    dry.attempt(lambda: {"value": 1.23456789}, case="good")
    assert run.result(0, [], dry.file)["results"] == dry.results == [
        {"case": "bad", "failed": "ZeroDivisionError: division by zero"}, {"case": "good", "value": 1.2346}]
    stages.ceilings(dry)
    assert all(case["tflop_per_s" if "gemm" in case["case"] else "gb_per_s"] > 0 for case in dry.results[2:])


@pytest.mark.parametrize("arguments, message", [
    (["--stage", "nope"], "invalid choice: 'nope'"), (["--out"], "expected one argument"),
    (["--allennlp", "/no/such/folder"], "--allennlp: no folder"), (["--nonsense"], "unrecognized arguments"),
])
def test_run_refuses_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        run.main(arguments)
    assert message in capsys.readouterr().err


def test_a_gpu_is_asked_for(tmp_path):
    """Without nvidia-smi and without --dry-run nothing is written."""
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    done = subprocess.run([RUN, "--out", tmp_path], capture_output=True, text=True, timeout=30, cwd=tmp_path,
                          env={**os.environ, "PYTHON": sys.executable})
    assert done.returncode == 2 and "--dry-run" in done.stderr and not list(tmp_path.iterdir())


def test_a_prediction_adds_up():
    """Counts of round numbers on a chip of round rates."""
    chip = predict.Chip("made up", hbm=1e12, l2=2e12, mma=4e12, shared=1e11, barrier=1e-6, l2_latency=2e-7,
                        cluster_latency=1e-7)
    counts = dict(blocks=100, mma=1000, wavefronts=100_000, ideal=90_000, weight_sectors=125_000,
                  exchange_sectors=31_250, input_sectors=31_250, z_bytes=100, cluster_bytes=1_000_000,
                  barriers=2, rounds=4, cluster_rounds=2)
    found = predict.predict(counts, chip)
    parts = {"products": 1.024, "shared": 1.28, "weights": 2.0, "exchange": 1.0, "inputs": 0.5, "waits": 3.0}
    assert {name: 1e6 * found[name] for name in parts} == pytest.approx(parts)
    assert 1e6 * found["work"] == pytest.approx(2.0 + 1.0 + 0.5)
    assert 1e6 * found["step"] == pytest.approx(3.0 + 3.5 / 2)  # waits of one direction, work of the other
    assert predict.predict(counts | {"weight_sectors": 1_000_000}, chip)["step"] == pytest.approx(17.5e-6)
    assert predict.predict(counts | {"z_bytes": 10**6}, chip)["inputs"] == pytest.approx(1e-6)
    assert predict.predicted_us("NVIDIA H100 80GB HBM3", 1) > 0 and predict.predicted_us("NVIDIA H100", 3) is None
    assert predict.predicted_us("NVIDIA A100", 1) is None
    assert predict.table(predict.stored()) in (common.ROOT / "docs" / "gpu.md").read_text()


def test_counts_of_a_step_are_told_apart_by_opcode():
    def fields(**given):
        return dict.fromkeys(("executed", "threads", "bytes", "sectors", "wavefronts", "ideal"), 0) | given

    opcodes = {
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": fields(executed=10), "ld.global.u16": fields(sectors=3),
        "ld.shared.v2.u32": fields(wavefronts=7, ideal=5), "ld.global.nc.L1::no_allocate.v4.u32": fields(sectors=16),
        "ld.global.cg.v2.f32": fields(sectors=4), "st.global.u32": fields(sectors=5),
        "ld.acquire.gpu.global.u32": fields(sectors=99), "ld.relaxed.gpu.global.u32": fields(sectors=99),
        "cp.async.cg.shared.global": fields(sectors=6, wavefronts=2, ideal=2),
        "ld.shared::cluster.v4.u32": fields(bytes=512, wavefronts=4, ideal=4),
        "red.release.gpu.global.add.u32": fields(executed=8)}
    assert predict.classified(opcodes, blocks=2, z_bytes=100, rounds=4, cluster_rounds=1) == dict(
        blocks=2, mma=10, wavefronts=9, ideal=7, weight_sectors=16, exchange_sectors=15, input_sectors=3, z_bytes=100,
        cluster_bytes=512, barriers=2, rounds=4, cluster_rounds=1)
