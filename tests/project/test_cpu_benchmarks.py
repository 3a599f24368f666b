"""The CPU benchmarks in dry runs, at sizes that measure nothing: what they write, and what ends them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_embed, bench_reference, bench_token_table, common, embed_results, floor, models, peers


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


def test_interleaving_takes_turns():
    order = []
    timings = common.interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == list("ababbaab")  # the first pair warms up
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
        "bench_token_table", "--size", "tiny", "--text-sizes", "tiny", "--batch-size", "3", "--batches", "2",
        "--residues", "20", "--batch-residues", "60", "--words", "90", "--reference-words", "30", "--rounds", "2",
        "--out", str(out), *arguments])
    return bench_token_table.main()


def test_the_token_table_benchmark_has_its_three_lines(tmp_path, monkeypatch, capsys):
    assert token_table(monkeypatch, tmp_path / "tiny.json", "--precisions", "highest") == 0, capsys.readouterr()
    document = json.loads((tmp_path / "tiny.json").read_text())
    cases = document["results"]
    assert [(case["line"], case["way"], case["variant"]) for case in cases] == [
        *(("text", way, f"{which} a table") for which in ("without", "with")
          for way in ("slots of 3", "one batch of 3")),
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
                          cwd=common.ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
