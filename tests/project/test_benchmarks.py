"""The benchmarks' logic, at sizes that measure nothing: what they write, and that one failure loses nothing else."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import bench_embed, bench_reference, bench_token_table, common, embed_results, floor, models, peers
from benchmarks.gpu import ceilings, checks, lstm, predict, run, stage

RUN = common.ROOT / "benchmarks" / "gpu" / "run.sh"
BROKEN = "ceilings"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Work this small only waits where its threads share busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    """A dry run one of whose stages raises: its exit status, what it printed, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ceilings, "work", lambda stage: stage.add(case="first", value=1) and 1 / 0)
        return run.main(["--dry-run", "--out", str(folder)]), folder / "dry-run"


def dry_stage(tmp_path) -> stage.Stage:
    return stage.Stage("made up", tmp_path / "part.json", 20, dry_run=True)


def test_a_broken_stage_leaves_the_results_of_the_others(dry_run):
    status, folder = dry_run
    stages = json.loads((folder / "run.json").read_text())["stages"]
    assert status == 1 and list(stages) == list(run.STAGES)
    assert stages[BROKEN]["status"] == "failed" and stages[BROKEN]["results"] == [{"case": "first", "value": 1}]
    assert stages[BROKEN]["error"] == "ZeroDivisionError: division by zero"
    for name in stages.keys() - {BROKEN}:
        assert stages[name]["status"] == "complete" and stages[name]["results"], (name, stages[name])


def test_a_run_names_its_machine_and_no_path(dry_run):
    _, folder = dry_run
    document = json.loads((folder / "run.json").read_text())
    assert document["machine"]["cpu"]["model"] and document["machine"]["torch"]
    assert document["date"].endswith("Z") and document["schema"] == common.SCHEMA
    for path in (common.ROOT, Path.home(), folder, sys.prefix):
        assert f"{path}/" not in json.dumps(document)
    assert [each.name for each in folder.iterdir()] == ["run.json"]


def test_every_timing_stands_behind_a_check(dry_run):
    _, folder = dry_run
    stages = json.loads((folder / "run.json").read_text())["stages"]
    for name, key in (("lstm", ("path", "precision")), ("text", ("precision",)), ("encoder", ("backend", "precision"))):
        cases = [case for case in stages[name]["results"]
                 if case.get("variant") != "reference" and "skipped" not in case]
        checked = {tuple(case[each] for each in key) for case in cases
                   if case.get("passed") and case["error"] <= case["limit"]}
        timed = [case for case in cases if "median" in case]
        assert timed and {tuple(case[each] for each in key) for case in timed} == checked
        assert {case["precision"] for case in timed} == {"highest", "high", "medium"}
        for case in timed:
            assert 0 < case["p20"] <= case["median"] <= case["p80"] and case["tokens_per_s"] > 0
    assert {case["part"] for case in stages["text"]["results"]} == {"device", "arrays", "stream"}
    assert all(case["clipped_c"] > 0 for case in stages["lstm"]["results"] if case.get("part") == "check")


def test_a_path_that_is_wrong_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(lstm, "run", lambda x, rows, schedule, state, weights, **settings: (
        torch.zeros(rows.shape[1], 2 * x.shape[1]), state))
    monkeypatch.setattr(lstm, "why_not", lambda device, path: None)
    dry = dry_stage(tmp_path)
    assert dry.run(lambda: lstm.work(dry)) == 1
    assert {(case["path"], case["precision"]) for case in dry.document["results"]} == {
        ("graph", "highest"), ("graph", "high"), ("graph", "medium"), ("persistent", "medium")}
    assert not any("median" in case or case["passed"] for case in dry.document["results"])
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
    found = checks.verdict(said)
    assert found.get("passed") is passed
    assert ("skipped" in found) == (passed is None) and ("log" in found) == (passed is False)


def test_a_stage_that_hangs_is_ended_and_keeps_its_cases(tmp_path):
    """With all that it started."""
    part, began = tmp_path / "part.json", time.monotonic()
    part.write_text(json.dumps({"status": "running", "results": [{"case": "first"}]}))
    script = f"echo out; echo {tmp_path}/err >&2; sleep 60 & wait"
    status, lines = run.run_apart(["sh", "-c", script], 1.0)
    found = run.result(part, status, lines)
    assert time.monotonic() - began < 20 and lines == ["out", f"{tmp_path}/err"]
    assert found["status"] == "timed out" and found["results"] == [{"case": "first"}] and found["log"][0] == "out"
    assert run.result(tmp_path / "none.json", *run.run_apart(["sh", "-c", "exit 3"], 5.0))["status"] == "failed"


def test_a_stage_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    """As far as it comes where nvidia-smi answers and torch sees no GPU."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H100 80GB HBM3\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = subprocess.run([RUN, "--stage", "lstm", "--out", tmp_path], capture_output=True, text=True, timeout=100, env={
        **os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"})
    found = json.loads((tmp_path / "h100-80gb-hbm3" / "lstm.json").read_text())
    assert done.returncode == 1 and found["machine"]["torch"] and list(found["stages"]) == ["lstm"]
    assert found["stages"]["lstm"]["error"] == "RuntimeError: torch sees no CUDA device; --dry-run runs without one"
    assert found["stages"]["lstm"]["exit"] == 1 and found["stages"]["lstm"]["log"]


def test_a_case_that_raises_is_recorded_and_the_next_one_runs(tmp_path):
    dry = dry_stage(tmp_path)
    dry.attempt(lambda: 1 / 0, case="bad")
    dry.attempt(lambda: {"value": 1.23456789}, case="good")
    assert json.loads(dry.out.read_text())["results"] == dry.document["results"] == [
        {"case": "bad", "failed": "ZeroDivisionError: division by zero"}, {"case": "good", "value": 1.2346}]


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
    counts = predict.Counts(blocks=100, mma=1000, wavefronts=100_000, ideal=90_000, weight_sectors=125_000,
                            exchange_sectors=31_250, input_sectors=31_250, z_bytes=100, cluster_bytes=1_000_000,
                            barriers=2, rounds=4, cluster_rounds=2)
    found = predict.predict(counts, chip)
    parts = {"products": 1.024, "shared": 1.28, "weights": 2.0, "exchange": 1.0, "inputs": 0.5, "waits": 3.0}
    assert {name: 1e6 * getattr(found, name) for name in parts} == pytest.approx(parts)
    assert 1e6 * found.work == pytest.approx(2.0 + 1.0 + 0.5)
    assert 1e6 * found.step == pytest.approx(3.0 + 3.5 / 2)  # waits of one direction, work of the other
    assert predict.predict(replace(counts, weight_sectors=1_000_000), chip).step == pytest.approx(17.5e-6)
    assert predict.predict(replace(counts, z_bytes=10**6), chip).inputs == pytest.approx(1e-6)
    assert predict.predicted_us("NVIDIA H100 80GB HBM3", 1) > 0 and predict.predicted_us("NVIDIA H100", 3) is None
    assert predict.predicted_us("NVIDIA A100", 1) is None


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
    assert predict.classified(opcodes, blocks=2, z_bytes=100, rounds=4, cluster_rounds=1) == predict.Counts(
        blocks=2, mma=10, wavefronts=9, ideal=7, weight_sectors=16, exchange_sectors=15, input_sectors=3, z_bytes=100,
        cluster_bytes=512, barriers=2, rounds=4, cluster_rounds=1)


def test_the_predictions_in_the_docs_are_those_of_the_counts():
    assert predict.table(predict.stored()) in (common.ROOT / "docs" / "gpu.md").read_text()


def test_the_char_encoder_is_counted_by_token():
    options = common.standard_options("original")
    dense = floor.char_cnn_count(options, np.array([50, 50]), "highest")
    assert dense.flop == pytest.approx(17.6e6, rel=0.005) and dense.bytes == 50 * 8 + 2048 * 4
    layer = floor.highway_count(options, "medium")
    assert layer.flop == 4 * 2048**2 and layer.bytes == 2 * 2048 * 2
    chip = floor.Chip("made up", {"medium": layer.flop * 10, "highest": 1e30}, 1e30)
    assert layer.tokens_per_s(chip, "medium") == pytest.approx(10)
    assert dense.tokens_per_s(floor.Chip("slow memory", chip.flops, dense.bytes * 3), "highest") == pytest.approx(3)
    assert floor.encoder_table(floor.H200, np.array([7, 9])).count("\n| ") == 6


def test_ceilings_name_what_a_cpu_cannot_measure(tmp_path):
    dry = dry_stage(tmp_path)
    ceilings.work(dry)
    cases = {case["case"]: case for case in dry.document["results"]}
    assert cases["gemm fp32"]["tflop_per_s"] > 0 and "skipped" in cases["probes"]


def test_the_probes_compile():
    """For an H100, in which they have what is measured: loads past L1, acquire and release."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, types, constant, expected in (
            (ceilings.read_kernel, {"source": "*i32", "sums": "*i32"}, {"BLOCK": 4096}, ["ld.global.cg.v4"]),
            (ceilings.barrier_kernel, {"count": "*i32", "gave_up": "*i32"}, {"MOST": 9}, ["release", "ld.acquire"])):
        signature = {name: "constexpr" if name in constant else types.get(name, "i32") for name in kernel.arg_names}
        aligned = {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}
        ptx = triton.compile(ASTSource(kernel, signature, constant, aligned), target=GPUTarget("cuda", 90, 32),
                             options={"num_warps": 8, "enable_fp_fusion": True}).asm["ptx"]
        assert all(each in ptx for each in expected)


def test_interleaving_takes_turns():
    order = []
    timings = common.interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == list("ab" "ab" "ba" "ab")  # the first pair warms up
    assert timings["a"].rounds == 3 and timings["a"].p20 <= timings["a"].median <= timings["a"].p80


@pytest.mark.parametrize("shared", ["present", "absent"])
def test_running_text_says_where_it_comes_from(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_SHARED", str(tmp_path))
    if shared == "present":
        (tmp_path / "text").mkdir()
        text = ' \n = Title = \n\n He said " No . " \n She left . The end .\n'
        (tmp_path / "text" / "wikitext2_valid.txt").write_text(text)
        assert common.running_text(3) == (
            [["He", "said", '"', "No", ".", '"'], ["She", "left", "."], ["The", "end", "."]], "wikitext2_valid.txt")
        with pytest.raises(ValueError, match="3 sentences"):
            common.running_text(4)
    else:
        sentences, source = common.running_text(256)
        assert source.startswith("generated") and len(sentences) == 256 and min(map(len, sentences)) > 0
        assert 0.25 < common.text_facts(sentences, 64)["unique_share"] < 0.45


def test_results_appear_whole(tmp_path):
    path = common.write_json(tmp_path / "a" / "b.json", common.document("name", {"size": "tiny"}, [1]))
    assert json.loads(path.read_text())["results"] == [1]
    assert [each.name for each in path.parent.iterdir()] == ["b.json"]
    assert common.slug("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb" and common.slug("NVIDIA H200") == "h200"


def test_the_reference_benchmark_writes_its_figures(tmp_path, monkeypatch, capsys):
    out = tmp_path / "tiny.json"
    monkeypatch.setattr(sys, "argv", ["bench_reference", "--size", "tiny", "--batch-size", "3", "--batches", "2",
                                      "--rounds", "1", "--backends", "reference", "torch", "--out", str(out)])
    assert bench_reference.main() == 0, capsys.readouterr()
    document = json.loads(out.read_text())
    assert [case["variant"] for case in document["results"]] == ["reference", "torch"]
    assert document["settings"]["agreement"]["torch"]["relative"] < bench_reference.AGREEMENT


def test_disagreement_is_relative_to_the_largest_value():
    truth = [np.array([0.0, 4.0]), np.array([2.0])]
    found = [np.array([0.0, 4.0]), np.array([2.5])]
    assert bench_reference.disagreement(found, truth) == (0.5, 0.125)


def embed(monkeypatch, out: Path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_embed", "--size", "tiny", "--batch-size", "3", "--batches", "3",
                                      "--peer-batches", "1", "--rounds", "2", "--out", str(out), *arguments])
    monkeypatch.setattr(bench_embed, "SENTENCE_SECONDS", 0.01)
    return bench_embed.main()


def test_the_embedding_benchmark_has_every_way_and_precision(tmp_path, monkeypatch, capsys):
    out = tmp_path / "tiny.json"
    assert embed(monkeypatch, out) == 0, capsys.readouterr()
    document = json.loads(out.read_text())
    settings, cases = document["settings"], document["results"]
    assert settings["times_as_fast_as"] == "reference" and settings["absent"] == models.absent_precisions()
    precisions = {name for name in floor.PRECISIONS if name not in settings["absent"]}
    assert set(settings["agreement"]["errors"]) == set(settings["rates"]) == precisions
    ways = {"slots of 3", "one batch of 3", "one sentence"}
    ours = [case for case in cases if case["variant"] == "ours"]
    assert sorted((case["way"], case["precision"]) for case in ours) == sorted(
        (way, precision) for way in ways for precision in precisions)
    assert [case["way"] for case in cases if case["variant"] == "reference"] == ["one batch of 3", "one sentence"]
    for case in cases:
        assert 0 < case["p20"] <= case["median"] <= case["p80"] and case["rounds"] == 2
        assert case["times_as_fast"] == 1 or case["variant"] == "ours"
        if "share" in case:
            assert case["share"] == pytest.approx(case["tokens_per_s"] / case["floor_tokens_per_s"], rel=1e-3)
            assert case["floor_tokens_per_s"] <= case["arithmetic_tokens_per_s"] * 1.0001
    assert embed_results.table([document]).count("\n| tiny |") == len(ours)


def test_the_embedding_benchmark_ends_on_a_disagreement(tmp_path, monkeypatch, capsys):
    build = models.build
    monkeypatch.setattr(models, "build", lambda size, backend: build(size, backend=backend, seed=backend == "auto"))
    assert embed(monkeypatch, tmp_path / "tiny.json", "--precisions", "highest") == 1
    assert "batches in highest against reference: relative error" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def token_table(monkeypatch, out: Path, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [
        "bench_token_table", "--size", "tiny", "--text-sizes", "tiny", "--batch-size", "3", "--batches", "2", "--residues",
        "20", "--batch-residues", "60", "--words", "90", "--reference-words", "30", "--rounds", "2", "--out", str(out),
        *arguments])
    return bench_token_table.main()


def test_the_token_table_benchmark_has_its_three_lines(tmp_path, monkeypatch, capsys):
    assert token_table(monkeypatch, tmp_path / "tiny.json", "--precisions", "highest") == 0, capsys.readouterr()
    document = json.loads((tmp_path / "tiny.json").read_text())
    cases = document["results"]
    assert [(case["line"], case["way"], case["variant"]) for case in cases] == [
        *(("text", way, f"{which} a table") for which in ("without", "with") for way in ("slots of 3", "one batch of 3")),
        ("proteins", "batches of 60 residues", "reference"), ("proteins", "batches of 60 residues", "with a table"),
        ("proteins", "slots of 3", "with a table"),
        ("building", "vectors", "reference"), ("building", "vectors", "with a table")]
    for case in cases:
        assert 0 < case["p20"] <= case["median"] <= case["p80"] and len(case["samples"]) == 2
        assert case["times_as_fast"] == 1 or case["variant"] == "with a table"
    facts = document["settings"]["lines"]
    assert facts["building tiny"]["words"] == 90 and facts["proteins tiny"]["sequences_a_batch"] == 3
    assert facts["text tiny"]["largest_difference"] <= bench_token_table.SAME


def test_the_token_table_benchmark_runs_every_precision_there_is(tmp_path, monkeypatch, capsys):
    if "medium" in models.absent_precisions():
        monkeypatch.setenv("ELMO_FAST_CPU_ISA", "amx-emulated")
    if "medium" in models.absent_precisions():
        pytest.skip("16-bit tiles need AMX, and their emulation AVX-512")
    assert token_table(monkeypatch, tmp_path / "tiny.json", "--lines", "proteins", "building") == 0, capsys.readouterr()
    document = json.loads((tmp_path / "tiny.json").read_text())
    variants = ["reference", "with a table", "with a table in high", "with a table in medium"]
    assert [case["variant"] for case in document["results"] if case["line"] == "building"] == variants
    assert document["settings"]["absent"] == {}
    errors = document["settings"]["lines"]["building tiny"]["errors"]
    assert 0 < errors["highest"] < errors["high"] < errors["medium"]  # 16-bit products took part


def test_the_token_table_benchmark_ends_on_a_disagreement(tmp_path, monkeypatch, capsys):
    build = models.build
    monkeypatch.setattr(models, "build", lambda size, **named: build(size, **{**named, "seed": len(named)}))
    assert token_table(monkeypatch, tmp_path / "tiny.json", "--lines", "text") == 1
    assert "text in tiny: largest difference from the path without a table" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_table_is_made_of_embedding_results_only(tmp_path, monkeypatch, capsys):
    other = common.write_json(tmp_path / "other.json", {"name": "reference tiny"})
    assert embed(monkeypatch, tmp_path / "none.json", "--table", str(other)) == 1
    assert "other.json has 'reference tiny'" in capsys.readouterr().err


def test_a_floor_counts_each_product_once():
    """MFLOP of the original model for one token: 17.6 for dense convolutions, 35.7 behind them, 151 for the LSTMs."""
    options = common.standard_options("original")
    encoder = 1e-6 * floor.encoder_flop(options, np.array([50]))
    assert encoder == pytest.approx(17.6 + 33.6 + 2.1, abs=0.1)
    sentences = [["a", "b", "a"], ["b"]]
    batches, slots = floor.work_of_batches([[each] for each in sentences]), floor.work_of_slots(sentences, 2)
    assert batches.batch_sizes.tolist() == [1] * 8 and slots.batch_sizes.tolist() == [2, 2, 2, 1, 1]
    assert sorted(batches.characters.tolist()) == [3] * 7 and slots.characters.tolist() == [3] * 4
    assert batches.tokens == slots.tokens == 4
    work = floor.Work(1, np.array([50]), np.array([1]))
    assert 1e-6 * floor.flop(options, work) == pytest.approx(encoder + 67.1 + 67.1 + 16.8, abs=0.1)
    rates = floor.Rates(threads=2, kib=1, fp32=1e9, read=4e9, tiles=0.0)  # a weight takes 1 ns to read, 2 to multiply
    assert floor.seconds(options, work, rates, "highest") == pytest.approx(floor.flop(options, work) / 1e9)
    slow = floor.Rates(threads=2, kib=1, fp32=1e9, read=1e9, tiles=0.0)  # 4 ns to read
    assert floor.seconds(options, work, slow, "highest") - floor.seconds(options, work, rates, "highest") == (
        pytest.approx(2 * floor.step_weights(options) * 2e-9))
    with pytest.raises(floor.NoFloor, match="tile products for medium"):
        floor.seconds(options, work, rates, "medium")


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(peers.PeerError, match="expected a checkout of AllenNLP 0.9"):
        peers.load_allennlp(tmp_path)


def test_allennlp_agrees_with_the_fixtures():
    checkout, shared = os.environ.get("ELMO_FAST_ALLENNLP"), common.shared_folder()
    if not checkout or not (shared / "fixtures").is_dir():
        pytest.skip("needs ELMO_FAST_ALLENNLP (a checkout of AllenNLP 0.9) and the shared fixtures")
    done = subprocess.run([sys.executable, "-m", "benchmarks.peers", "--allennlp", checkout, "--shared", shared],
                          cwd=common.ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
