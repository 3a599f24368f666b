"""The CPU benchmarks in dry runs, at sizes that measure nothing: what they write, and what ends them."""

import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import bench_embed, bench_reference, bench_token_table, bench_train, common, floor, models, peers
from benchmarks.state_policies import main as compare_policies
from elmo_fast.model.weights import lstm_name
from elmo_fast.train.export import export_run
from elmo_fast.train.setup import start_or_resume
from tests.support.training import TINY, write_corpus, write_options

SMALLEST = {
    bench_reference: "--batch-size 3 --batches 2 --rounds 1 --backends reference torch",
    bench_embed: "--batch-size 3 --batches 3 --peer-batches 1 --rounds 2",
    bench_token_table: "--text-sizes tiny --batch-size 3 --batches 2 --residues 20 --batch-residues 60 --words 90 "
                       "--reference-words 30 --rounds 2",
}


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """Run a benchmark: its settings and results, or the reason on stderr for which it ended without a file."""
    def run(module, *more):
        out = tmp_path / "out" / "tiny.json"
        arguments = [*SMALLEST[module].split(), "--size", "tiny", "--out", str(out), *map(str, more)]
        monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
        monkeypatch.setattr(bench_embed, "SENTENCE_SECONDS", 0.01)
        status, errors = module.main(), capsys.readouterr().err
        assert (status, out.exists()) in ((0, True), (1, False)), errors
        if status:
            return errors
        document = json.loads(out.read_text())
        assert [file.name for file in out.parent.iterdir()] == ["tiny.json"]
        assert all(0 < case["p20"] <= case["median"] <= case["p80"] for case in document["results"])
        assert str(tmp_path) not in json.dumps(document)
        return document["settings"], document["results"]
    return run


def test_the_reference(bench):
    settings, cases = bench(bench_reference)
    assert [case["variant"] for case in cases] == ["reference", "torch"]
    assert settings["agreement"]["torch"]["relative"] < bench_reference.AGREEMENT
    truth = [np.array([0.0, 4.0]), np.array([2.0])]
    assert bench_reference.disagreement([truth[0], np.array([2.5])], truth) == (0.5, 0.125)


def test_embedding_has_every_way_and_precision(bench):
    settings, cases = bench(bench_embed)
    assert settings["times_as_fast_as"] == "reference" and settings["absent"] == models.absent_precisions()
    precisions = {name for name in floor.PRECISIONS if name not in settings["absent"]}
    assert set(settings["agreement"]["errors"]) == set(settings["rates"]) == precisions
    ours = [case for case in cases if case["variant"] == "ours"]
    assert sorted((case["way"], case["precision"]) for case in ours) == sorted(
        itertools.product(["slots of 3", "one batch of 3", "one sentence"], precisions))
    assert [case["way"] for case in cases if case["variant"] == "reference"] == ["one batch of 3", "one sentence"]
    for case in cases:
        assert case["rounds"] == 2 and (case["times_as_fast"] == 1 or case["variant"] == "ours")
        if "share" in case:
            assert case["share"] == pytest.approx(case["tokens_per_s"] / case["floor_tokens_per_s"], rel=1e-3)
            assert case["floor_tokens_per_s"] <= case["arithmetic_tokens_per_s"] * 1.0001
    document = common.document("embed tiny", settings, cases)
    assert bench_embed.embed_results.table([document]).count("\n| tiny |") == len(ours)


def test_the_token_table_has_its_three_lines(bench):
    settings, cases = bench(bench_token_table, "--precisions", "highest")
    assert [(case["line"], case["way"], case["variant"]) for case in cases] == [
        *(("text", way, f"{which} a table") for which in ("without", "with")
          for way in ("slots of 3", "one batch of 3")),
        ("proteins", "batches of 60 residues", "reference"), ("proteins", "batches of 60 residues", "with a table"),
        ("proteins", "slots of 3", "with a table"),
        ("building", "vectors", "reference"), ("building", "vectors", "with a table")]
    for case in cases:
        assert len(case["samples"]) == 2 and (case["times_as_fast"] == 1 or case["variant"] == "with a table")
    facts = settings["lines"]
    assert facts["building tiny"]["words"] == 90 and facts["proteins tiny"]["sequences_a_batch"] == 3
    assert facts["text tiny"]["largest_difference"] <= bench_token_table.SAME


def test_the_token_table_runs_every_precision_there_is(bench, monkeypatch):
    if "medium" in models.absent_precisions():
        monkeypatch.setenv("ELMO_FAST_CPU_ISA", "amx-emulated")
    if "medium" in models.absent_precisions():
        pytest.skip("16-bit tiles need AMX, and their emulation AVX-512")
    settings, cases = bench(bench_token_table, "--lines", "proteins", "building")
    variants = ["reference", "with a table", "with a table in high", "with a table in medium"]
    assert [case["variant"] for case in cases if case["line"] == "building"] == variants
    errors = settings["lines"]["building tiny"]["errors"]
    assert settings["absent"] == {} and 0 < errors["highest"] < errors["high"] < errors["medium"]  # 16-bit products


@pytest.mark.parametrize("module, arguments, message", [
    (bench_embed, ["--precisions", "highest"], "batches in highest against reference: relative error"),
    (bench_embed, ["--table", "other.json"], "other.json has 'reference tiny'"),
    (bench_token_table, ["--lines", "text"], "text in tiny: largest difference from the path without a table"),
])
def test_a_disagreement_or_another_file_ends_the_run(bench, tmp_path, monkeypatch, module, arguments, message):
    monkeypatch.chdir(tmp_path)
    common.write_json(tmp_path / "other.json", {"name": "reference tiny"})
    build, seeds = models.build, itertools.count()
    monkeypatch.setattr(models, "build", lambda size, **named: build(size, **{**named, "seed": next(seeds)}))
    assert message in bench(module, *arguments)


# ---- training ------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setitem(bench_train.SIZES, "tiny", (*bench_train.SIZES["tiny"][:5], 7, 28))
    return write_corpus(tmp_path / "text", sentences=60)


def test_training_has_speed_and_perplexity(tmp_path, corpus):
    found = bench_train.main(["--size", "tiny", "--steps", "6", "--turn", "2", "--train", corpus[0],
                              "--heldout", corpus[0], "--heldout-rows", "4", "--threads", "1", "--output",
                              str(tmp_path / "r.json")])
    written = json.loads((tmp_path / "r.json").read_text())
    ours = written["results"]["elmo-fast"]
    assert ours["tokens"] == 6 * 8 * 20 and ours["tokens_per_second"] > 0
    assert ours["heldout_perplexity"] == pytest.approx(found["elmo-fast"]["heldout_perplexity"], rel=1e-4)
    assert written["settings"]["text"]["words"] == 28 and str(tmp_path) not in json.dumps(written)
    with pytest.raises(ValueError, match="--steps: expected more than 2"):
        bench_train.main(["--steps", "2", "--turn", "2"])
    cell = "RNN_1/rnn/multi_rnn_cell/cell_0/lstm_cell"
    for theirs, name in (("kernel", "W_0"), ("bias", "B"), ("projection/kernel", "W_P_0")):
        assert bench_train.ours_name(f"{cell}/{theirs}") == lstm_name(1, 0, name)
    assert bench_train.ours_name("softmax/W") == "softmax/W"


def test_state_policies_agree_where_they_must(tmp_path, corpus):
    start_or_resume(tmp_path / "run", train=[corpus[0]], vocab=str(corpus[1]), max_steps=30, quiet=True,
                    options_file=write_options(tmp_path / "o.json", TINY))
    export_run(tmp_path / "run", tmp_path / "model", softmax=True)
    text = tmp_path / "one.txt"
    text.write_text("ka lo mi\npo ru\nka ka\n")
    one = compare_policies([str(tmp_path / "model"), str(text), "--output", str(tmp_path / "r.json")])
    assert one["zero"]["loss"] == pytest.approx(one["carry"]["loss"])  # one batch: carried starts from zeros too
    assert one["zero"]["distance_from_carried"] == 0 < one["warm"]["distance_from_carried"]
    many = compare_policies([str(tmp_path / "model"), str(text), "--batch-size", "1", "--warm-text", str(text)])
    assert many["zero"]["loss"] == pytest.approx(one["zero"]["loss"], rel=1e-5)
    assert many["zero"]["distance_from_carried"] > 0
    assert json.loads((tmp_path / "r.json").read_text())["results"].keys() == {"zero", "warm", "carry"}


# ---- what they share -----------------------------------------------------------------------


def test_sides_take_turns():
    order = []
    timings = common.interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == list("ababbaab")  # the first pair warms up
    assert timings["a"].rounds == 3 and timings["a"].p20 <= timings["a"].median <= timings["a"].p80
    calls = []
    sides = {name: SimpleNamespace(turn=lambda steps, name=name: calls.append((name, steps)) or 1.0) for name in "ab"}
    assert bench_train.by_turns(sides, 5, 2) == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert calls == [("a", 2), ("b", 2), ("b", 2), ("a", 2), ("a", 1), ("b", 1)]


def test_running_text_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_SHARED", str(tmp_path))
    sentences, source = common.running_text(256)
    assert source.startswith("generated") and len(sentences) == 256 and min(map(len, sentences)) > 0
    assert 0.25 < common.text_facts(sentences, 64)["unique_share"] < 0.45
    (tmp_path / "text").mkdir()
    text = ' \n = Title = \n\n He said " No . " \n She left . The end .\n'
    (tmp_path / "text" / "wikitext2_valid.txt").write_text(text)
    assert common.running_text(3) == (
        [["He", "said", '"', "No", ".", '"'], ["She", "left", "."], ["The", "end", "."]], "wikitext2_valid.txt")
    with pytest.raises(ValueError, match="3 sentences"):
        common.running_text(4)


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


def test_allennlp_agrees_with_the_fixtures(tmp_path):
    with pytest.raises(peers.PeerError, match="expected a checkout of AllenNLP 0.9"):
        peers.load_allennlp(tmp_path)
    checkout, shared = os.environ.get("ELMO_FAST_ALLENNLP"), common.shared_folder()
    if not checkout or not (shared / "fixtures").is_dir():
        pytest.skip("needs ELMO_FAST_ALLENNLP (a checkout of AllenNLP 0.9) and the shared fixtures")
    done = subprocess.run([sys.executable, "-m", "benchmarks.peers", "--allennlp", checkout, "--shared", shared],
                          cwd=common.ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
