"""The benchmarks' logic, at sizes that measure nothing: what they write, and that one failure loses nothing else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import bench_embed, bench_reference, bench_token_table, common, embed_results, floor, models, peers
from benchmarks.gpu import barriers, ceilings, report, sanitizer, stage, tier_table, tiers

RUN = common.ROOT / "benchmarks" / "gpu" / "run.sh"
STAGES = ["build", "checks", "ceilings", "encoder", "tiers", "text", "sanitizer", "eager", "cudnn", "compiled"]
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
    """A dry run whose interpreter refuses one stage, and the document that it left."""
    folder = tmp_path_factory.mktemp("gpu")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *benchmarks.gpu.{BROKEN}*) echo refused; exit 3;; esac\n'
                      f'exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([RUN, "--dry-run", "--out", folder / "out"], env=environment, capture_output=True, text=True,
                          timeout=560)
    return done, folder / "out" / "dry-run"


def test_a_broken_stage_leaves_the_results_of_the_others(dry_run):
    done, folder = dry_run
    assert done.returncode == 1, done.stdout + done.stderr
    stages = json.loads((folder / "run.json").read_text())["stages"]
    assert list(stages) == STAGES
    assert stages[BROKEN]["status"] == "failed" and stages[BROKEN]["exit"] == 3
    assert stages[BROKEN]["log"] == ["refused"] and stages[BROKEN]["results"] == []
    for name in STAGES:
        if name != BROKEN:
            assert stages[name]["status"] == "complete", (name, stages[name], done.stdout)
            assert stages[name]["results"], name


def test_a_run_names_its_machine_and_no_path(dry_run):
    _, folder = dry_run
    text = (folder / "run.json").read_text()
    document = json.loads(text)
    assert document["machine"]["cpu"]["model"] and document["machine"]["torch"]
    assert document["date"].endswith("Z") and document["schema"] == common.SCHEMA
    for path in (common.ROOT, Path.home(), folder, sys.prefix):
        assert f"{path}/" not in text
    assert not (folder / "parts").exists()


def test_timed_cases_carry_their_shape_and_spread(dry_run):
    _, folder = dry_run
    stages = json.loads((folder / "run.json").read_text())["stages"]
    timed = [case for case in stages["tiers"]["results"] if "median" in case]
    assert {case["precision"] for case in timed} == {"highest", "high", "medium"}
    for name in ("eager", "cudnn", "compiled", "tiers"):
        for case in timed if name == "tiers" else stages[name]["results"]:
            assert case["batch"] >= 1 and case["length"] >= 1 and case["variant"]
            assert 0 < case["p20"] <= case["median"] <= case["p80"]
            assert case["tokens_per_s"] == pytest.approx(case["batch"] * case["length"] / case["median"], rel=1e-3)
    assert {case["part"] for case in stages["text"]["results"]} == {"device", "arrays", "lanes"}


def test_checks_compare_every_layer_and_see_both_clips_fire(dry_run):
    _, folder = dry_run
    cases = json.loads((folder / "run.json").read_text())["stages"]["checks"]["results"]
    assert {case["around"] for case in cases} == {"plain", "tf32 flags", "autocast"}
    for case in cases:
        assert case["passed"] and len(case["errors"]) == 3 and max(case["errors"]) <= case["limit"]
        if "fire" in case["model"]:
            assert case["clipped_h"] > 0 and case["clipped_c"] > 0


def test_a_tier_that_is_wrong_is_not_timed(tmp_path, monkeypatch):
    dry = stage.Stage("tiers", tmp_path / "tiers.json", 20, dry_run=True, strict=True)
    monkeypatch.setattr(tiers, "engine", lambda stage: lambda *operands, **settings: (torch.zeros(1), operands[3]))
    tiers.time_if_right(dry, None, "A", "highest")
    cases = dry.document["results"]
    assert len(cases) == len(tiers.DRY_CHECKED) and not any(case.get("passed") for case in cases)
    assert dry.verdict() == "2 of 2 cases failed"


def timed(tier, precision, length, batch, median):
    return {"tier": tier, "precision": precision, "length": length, "batch": batch, "median": median}


def test_the_table_of_tiers_follows_what_was_measured():
    from elmo_fast.ops import cuda_tiers

    seconds = {  # A, B, C at batch 1, 16, 64; C has lost its advantage at 64, and B's over A is below the threshold
        1000: ((9, 6, 3), (9, 6, 4), (9, 8.9, 12)), 25: ((9, 6, 7), (9, 6, 7), (9, 10, 12))}
    cases = [timed(tier, "medium", length, batch, median) for length, rows in seconds.items()
             for batch, row in zip((1, 16, 64), rows) for tier, median in zip("ABC", row)]
    cases += [timed("A", "highest", 25, 1, 1.0), {"tier": "B", "skipped": "no reason"}]
    before = {"schema": 1, "rules": [{"tier": "A"}], "by_gpu": {"another": [{"tier": "A"}]}}
    run = {"date": "today", "revision": "abc", "machine": {"gpu": {"name": "NVIDIA H200"}},
           "stages": {"tiers": {"results": cases, "settings": {"dim": 4096}}}}
    table = tier_table.table(run, before)
    assert table["measured"]["NVIDIA H200"] == {"date": "today", "revision": "abc"} and "another" in table["by_gpu"]
    rules = cuda_tiers.read_rules(table, "NVIDIA H200")
    runs = dict.fromkeys(cuda_tiers.TIERS).get
    for lanes, steps, dim, precision, tier in (
            (1, 1000, 4096, "medium", "C"), (16, 1000, 4096, "medium", "C"), (32, 158, 4096, "medium", "C"),
            (33, 1000, 4096, "medium", "A"), (256, 1000, 4096, "medium", "A"), (16, 157, 4096, "medium", "B"),
            (16, 1, 2048, "medium", "B"), (33, 25, 4096, "medium", "A"), (16, 25, 1024, "medium", "A"),
            (16, 1000, 4096, "highest", "A"), (16, 1000, 4096, "high", "A")):
        assert cuda_tiers.by_rules(rules, cuda_tiers.Work(dim, 512, lanes, steps, precision), runs) == tier, (lanes, steps)
    for document in ({**run, "machine": {"gpu": None}}, {**run, "stages": {}}):
        with pytest.raises(ValueError, match="stage 'tiers' timed a GPU"):
            tier_table.table(document, before)


def test_a_dry_run_gives_no_table(dry_run):
    _, folder = dry_run
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu.tier_table", "--results", folder / "run.json", "--install"],
                          cwd=common.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "timed a GPU" in done.stderr


@pytest.mark.parametrize("said, passed", [
    ("done\n========= ERROR SUMMARY: 0 errors\n", True),
    ("done\n========= Invalid read\n========= ERROR SUMMARY: 1 error\n", False),
    ("========= ERROR SUMMARY: 0 errors\n", False),
    ("done\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", True),
    ("done\n========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", False),
    ("Device not supported\n", None),
])
def test_what_the_sanitizer_says(said, passed):
    found = sanitizer.verdict(said)
    assert found.get("passed") is passed
    assert ("failed" in found) == (passed is None) and ("log" in found) == (passed is False)


def test_what_the_sanitizer_watches_runs(capsys):
    sanitizer.small("cpu")
    said = capsys.readouterr().out
    assert said.endswith("done\n")
    found = sanitizer.verdict(said + "========= ERROR SUMMARY: 0 errors\n")
    assert found["passed"] and found["watched"] == ["A in highest", "A in high", "A in medium"]


def test_the_sanitizer_watches_every_tier_that_runs(monkeypatch):
    from elmo_fast.ops import cuda_tiers

    monkeypatch.setattr(cuda_tiers, "why_not", lambda tier, device, work: (
        None if tier == "A" or tier == "C" and work.precision == "medium" else "no"))
    assert sanitizer.watched("cpu") == [("A", "highest"), ("A", "high"), ("A", "medium"), ("C", "medium")]


def test_a_shape_that_a_tier_cannot_run_is_not_timed(tmp_path, monkeypatch):
    from elmo_fast.ops import cuda_tiers

    asked = []
    monkeypatch.setattr(tiers, "reason_against", lambda tier, work, device: (
        asked.append(work), "the batch is above 32 lanes" if work.lanes > 32 else None)[1])
    dry, bilm = stage.Stage("tiers", tmp_path / "tiers.json", 20, dry_run=True), models.build("tiny")
    assert tiers.fits(dry, bilm, "C", "medium", 32, 25) and not tiers.fits(dry, bilm, "C", "medium", 64, 25)
    lstm = bilm.options.lstm
    assert asked[1] == cuda_tiers.Work(lstm.dim, lstm.projection_dim, 64, 27, "medium", "fp16")
    (case,) = dry.document["results"]
    assert (case["tier"], case["batch"], case["skipped"]) == ("C", 64, "the batch is above 32 lanes")


def test_the_barriers_are_compiled_and_read(tmp_path):
    cases = barriers.read('{"barrier": "counter", "blocks": 132, "passed": true, "ns": 900.5}\nnoise\n')
    assert cases == [{"barrier": "counter", "blocks": 132, "passed": True, "ns": 900.5}]
    dry = stage.Stage("ceilings", tmp_path / "ceilings.json", 20, dry_run=True)
    barriers.measure(dry)
    assert dry.document["results"] == [{"case": "barrier", "skipped": "a barrier over a launch needs a GPU"}]
    if barriers.compiler() is None:
        pytest.skip("needs nvcc")
    assert barriers.compiled(tmp_path).stat().st_size > 0


def test_the_encoder_stage_checks_before_it_times(dry_run):
    _, folder = dry_run
    cases = json.loads((folder / "run.json").read_text())["stages"]["encoder"]["results"]
    assert {case["case"] for case in cases} == {"char_cnn", "highway"}
    assert {"torch", "torch compiled"} <= {case["variant"] for case in cases} <= {"native", "torch", "torch compiled"}
    for check, timed in zip(cases[::2], cases[1::2]):
        assert check["part"] == "check" and check["passed"] and 0 <= check["error"] <= check["limit"]
        assert timed["part"] == "time" and timed["tokens_per_s"] == pytest.approx(timed["tokens"] / timed["median"], rel=1e-3)


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
    dry = stage.Stage("ceilings", tmp_path / "ceilings.json", 20, dry_run=True)
    ceilings.work(dry)
    cases = {case["case"]: case for case in json.loads(dry.out.read_text())["results"]}
    assert cases["copy"]["gb_per_s"] > 0 and cases["gemm fp32"]["tflop_per_s"] > 0
    assert cases["launch"]["us_per_launch"] > 0 and "skipped" in cases["graph node"]


def test_a_stage_that_ran_out_of_time_keeps_its_cases(tmp_path):
    part = {"status": "running", "results": [{"variant": "model", "batch": 1, "length": 25, "tokens_per_s": 1.0}]}
    (tmp_path / "eager.json").write_text(json.dumps(part))
    (tmp_path / "eager.exit").write_text("124 90 90\n")
    eager = report.join(tmp_path)["stages"]["eager"]
    assert eager["status"] == "timed out" and eager["results"] == part["results"]


def test_a_case_that_raises_is_recorded_and_the_next_one_runs(tmp_path):
    dry = stage.Stage("eager", tmp_path / "eager.json", 20, dry_run=True)
    dry.attempt({"case": "bad"}, lambda: 1 / 0)
    dry.attempt({"case": "good"}, lambda: {"value": 1.23456789})
    assert dry.document["results"] == [{"case": "bad", "failed": "ZeroDivisionError: division by zero"},
                                       {"case": "good", "value": 1.2346}]
    assert dry.verdict() is None
    dry.strict = True
    assert dry.verdict() == "1 of 2 cases failed"


@pytest.mark.parametrize("arguments, message", [
    (["--stage", "nope"], "--stage: expected one of"),
    (["--out"], "--out: expected a value"),
    (["--allennlp", "/no/such/folder"], "--allennlp: no folder"),
    (["--nonsense"], "unknown argument"),
])
def test_run_refuses_wrong_arguments(arguments, message):
    done = subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and message in done.stderr and not done.stdout


def test_a_gpu_is_asked_for(tmp_path):
    """Without nvidia-smi and without --dry-run nothing is written."""
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    done = subprocess.run([RUN, "--out", tmp_path], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "--dry-run" in done.stderr and not list(tmp_path.iterdir())


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
        assert 0.25 < common.text_facts(sentences, 64)["distinct_share"] < 0.45


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
    ways = {"lanes of 3", "one batch of 3", "one sentence"}
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
        *(("text", way, f"{which} a table") for which in ("without", "with") for way in ("lanes of 3", "one batch of 3")),
        ("proteins", "batches of 60 residues", "reference"), ("proteins", "batches of 60 residues", "with a table"),
        ("proteins", "lanes of 3", "with a table"),
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
    batches, lanes = floor.work_of_batches([[each] for each in sentences]), floor.work_of_lanes(sentences, 2)
    assert batches.live.tolist() == [1] * 8 and lanes.live.tolist() == [2, 2, 2, 1, 1]
    assert sorted(batches.characters.tolist()) == [3] * 7 and lanes.characters.tolist() == [3] * 4
    assert batches.tokens == lanes.tokens == 4
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
