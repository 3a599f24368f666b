"""The CPU benchmarks in dry runs, at sizes that measure nothing: their results and errors."""

import itertools
import json
import subprocess

import numpy as np
import pytest
import torch

from benchmarks import bench_embed, bench_table, bench_train, common, floor, latency, models, precisions, workloads
from benchmarks.peers import bilm_tf
from benchmarks.state_policies import main as compare_policies
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.engine.precision import PRECISIONS
from elmo_fast.train.export import export_run
from elmo_fast.train.setup import start_or_resume
from elmo_fast.weights.datasets import lstm_name
from tests.support.engines import needs_native
from tests.support.files import python
from tests.support.training import TINY, write_corpus, write_options

SMALLEST = {
    bench_embed: "--batch-size 3 --batches 3 --peer-batches 1 --rounds 2",
    bench_table: "--text-models tiny --batch-size 3 --batches 2 --residues 20 --batch-residues 60 --words 90 "
                       "--reference-words 30 --rounds 2",
    bench_train: "--steps 6 --turn 2 --heldout-rows 4 --threads 1",
}


@pytest.fixture(scope="module")
def floor_program(tmp_path_factory):
    """The floor's program, compiled once; None where it does not compile."""
    program = tmp_path_factory.mktemp("floor") / "floor"
    return program if subprocess.run(floor._compile_command(program), capture_output=True).returncode == 0 else None


@pytest.fixture
def bench(dry_run, monkeypatch, floor_program):
    """Run a benchmark: its settings and results, or the error on stderr of a run without a file."""
    def run(module, *more):
        monkeypatch.setattr(bench_embed, "SENTENCE_SECONDS", 0.01)
        monkeypatch.setattr(latency, "SECONDS", 0.01)
        if floor_program:
            monkeypatch.setattr(floor, "_compile_command", lambda program: ["cp", floor_program, program])
        document = dry_run(module, *SMALLEST[module].split(), "--model", "tiny", *more)
        if isinstance(document, str):
            return document
        assert all(0 < case["p20"] <= case["median"] <= case["p80"] for case in document["results"])
        return document["settings"], document["results"]
    return run


@pytest.mark.long
@needs_native
def test_latency_has_every_length_load_and_number_of_threads(bench):
    settings, cases = bench(bench_embed, "--latency", "--threads", "2")
    assert settings["default_threads"] == 2 and settings["busy_processes"] >= 1
    ways = [*(f"{count} tokens" for count in latency.TOKENS), "slots of 3"]
    assert sorted((case["way"], case["variant"], case["threads"]) for case in cases if case["way"] != "host") == sorted(
        itertools.product(ways, ["idle", "busy"], [1, 2]))
    assert all(case["p99"] >= case["median"] for case in cases if "p99" in case)
    assert all(0 < case["engine_s"] < case["median"] for case in cases if case["unit"] == "s")
    assert [case["variant"] for case in cases if case["way"] == "host"] == ["zero state", "carry state"]


@pytest.mark.long
def test_embedding_has_every_way_and_precision(bench):
    settings, cases = bench(bench_embed, "--precisions", *floor.PRECISIONS)
    absent = {name: reason for name, reason in models.absent_precisions().items() if name in floor.PRECISIONS}
    assert settings["times_as_fast_as"] == "reference" and settings["absent"] == absent
    precisions = {*floor.PRECISIONS} - {*absent}
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
        assert ("error" in case) == (case["variant"] == "ours") and case.get("error", 0) <= case.get("limit", 0)
        assert (case["workload"], case["model"]) == ("running text", "tiny")
    assert common.table(common.document("embed tiny", settings, cases)).count("\n| tiny |") == len(cases)


@pytest.mark.long
@pytest.mark.parametrize("workload", workloads.TEXTS)
def test_every_workload_runs(bench, monkeypatch, workload):
    monkeypatch.setattr(workloads, "DOCUMENT_TOKENS", 70)
    monkeypatch.setattr(workloads, "RESIDUES", 50)
    settings, cases = bench(bench_embed, "--workload", workload, "--precisions", "highest")
    assert {case["workload"] for case in cases} == {workload} and settings["sentences"] == 9
    sentences, source = workloads.read(workload, 5)
    assert len(sentences) == 5 and settings["text"] == source
    assert sentences == workloads.read(workload, 5)[0]
    if workload == "short sentences":
        assert {len(sentence) for sentence in workloads.read(workload, 200)[0]} == set(range(3, 9))


@pytest.mark.parametrize("module, arguments, message", [
    (bench_embed, ["--precisions", "highest"], "batches in highest against reference: relative error"),
    (bench_embed, ["--precisions", "highest", "--plain", "torch"], "torch against reference: relative error"),
    pytest.param(bench_embed, ["--device", "cuda"], "--device: expected cpu where torch sees no CUDA device",
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a CUDA device")),
    (bench_embed, ["--simple-elmo", "nowhere"], "expected a folder with simple_elmo/elmo_helpers.py, got nowhere"),
    (bench_embed, ["--bilm-tf", "nowhere"], "expected a folder with bilm/model.py, got nowhere"),
    (bench_embed, ["--allennlp", "nowhere"], "expected a checkout of AllenNLP 0.9"),
    (bench_table, ["--lines", "text"], "text in tiny: largest difference from the path without a table"),
])
def test_a_disagreement_or_a_missing_peer_ends_the_run(bench, monkeypatch, module, arguments, message):
    build, seeds = models.build, itertools.count()
    monkeypatch.setattr(models, "build", lambda size, **settings: build(size, **{**settings, "seed": next(seeds)}))
    assert message in bench(module, *arguments)


@pytest.mark.long
def test_single_ops_give_rows_of_the_same_shape(tmp_path):
    pytest.importorskip("pytest_benchmark")
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "benchmarks/bench_ops", "--benchmark-only", "-k",
           "test_projected_lstm and small and b1 and torch", "--benchmark-min-rounds=2", "--rows",
           tmp_path / "ops.json", timeout=100, PYTEST_XDIST_WORKER="")  # xdist's processes time nothing
    row, = json.loads((tmp_path / "ops.json").read_text())["results"]
    assert (row["model"], row["way"], row["variant"]) == ("small", "projected_lstm, batch 1", "torch")
    assert row["rounds"] == 2 and 0 < row["p20"] <= row["median"] and 0 <= row["error"] <= row["limit"] == 2e-6


# ---- training ------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setitem(bench_train.SIZES, "tiny", (*bench_train.SIZES["tiny"][:5], 7, 28))
    return write_corpus(tmp_path / "text", sentences=60)


def test_training_has_speed_and_perplexity(bench, corpus):
    facts = "--train", corpus[0], "--heldout", corpus[0]
    settings, (ours,) = bench(bench_train, *facts)
    assert ours["variant"] == "elmo-fast" and ours["unit"] == "tokens/s" and ours["rounds"] == 2
    assert ours["tokens"] == 6 * 8 * 20 and 1 < ours["heldout_perplexity"] < 100
    assert settings["text"]["words"] == 28 and settings["threads"] == 1
    assert "--steps: expected more than 2" in bench(bench_train, *facts, "--steps", "2")
    cell = "RNN_1/rnn/multi_rnn_cell/cell_0/lstm_cell"
    for theirs, name in (("kernel", "W_0"), ("bias", "B"), ("projection/kernel", "W_P_0")):
        assert bilm_tf.ours_name(f"{cell}/{theirs}") == lstm_name(1, 0, name)
    assert bilm_tf.ours_name("softmax/W") == "softmax/W"


@pytest.mark.long
def test_state_policies_agree_where_they_must(tmp_path, corpus):
    start_or_resume(tmp_path / "run", train=[corpus[0]], vocab=str(corpus[1]), max_steps=30, quiet=True,
                    options_file=write_options(tmp_path / "o.json", TINY))
    export_run(tmp_path / "run", tmp_path / "model", softmax=True)
    text = tmp_path / "one.txt"
    text.write_text("ka lo mi\npo ru\nka ka\n")
    report = compare_policies([str(tmp_path / "model"), str(text), "--output", str(tmp_path / "r.json")])
    assert report["zero"]["loss"] == pytest.approx(report["carry"]["loss"])  # one batch: carried starts from zeros too
    assert report["zero"]["distance_from_carried"] == 0 < report["warm"]["distance_from_carried"]
    single = compare_policies([str(tmp_path / "model"), str(text), "--batch-size", "1", "--warm-text", str(text)])
    assert single["zero"]["loss"] == pytest.approx(report["zero"]["loss"], rel=1e-5)
    assert single["zero"]["distance_from_carried"] > 0
    assert json.loads((tmp_path / "r.json").read_text())["results"].keys() == {"zero", "warm", "carry"}


@pytest.mark.long
def test_precisions_have_the_figures_of_their_vectors(dry_run):
    document = dry_run(precisions, "--model", "tiny", "--sentences", 70, "--rounds", 2)
    assert precisions.table(document).count("\n| ") == 1 + len(document["results"])
    absent, sentences = models.absent_precisions(), workloads.running_text(70)[0]
    assert document["settings"]["absent"] == absent and document["settings"]["tokens"] == sum(map(len, sentences))
    assert [row["variant"] for row in document["results"]] == [name for name in PRECISIONS if name not in absent]
    for row in document["results"]:
        exact, elmo = (LoadedElmo(models.build("tiny", backend="auto", state="warm", precision=name))
                       for name in ("highest", row["variant"]))
        truth, vectors = (np.concatenate(model.embed(sentences), axis=1).astype(float) for model in (exact, elmo))
        cosines = (truth * vectors).sum(2) / np.linalg.norm(truth, axis=2) / np.linalg.norm(vectors, axis=2)
        errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(vectors, truth)]
        low, high = row["quartiles"]
        assert 0 < low <= row["tokens_per_s"] <= high and row["sentence_ms"] > 0
        assert row["relative_errors"] == pytest.approx(errors, rel=1e-4, abs=1e-9)
        assert row["smallest_cosine"] == pytest.approx(cosines.min(), abs=1e-7)
    assert document["results"][0]["relative_errors"] == [0, 0, 0]


# ---- the floor -----------------------------------------------------------------------------


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
    rates = floor.Rates(threads=2, kib=1, fp32=1e9, read=4e9, bf16=0.0)  # a weight takes 1 ns to read, 2 to multiply
    assert floor.seconds(options, work, rates, "highest") == pytest.approx(floor.flop(options, work) / 1e9)
    for precision in ("high", "low"):
        with pytest.raises(floor.NoFloor, match=f"no rate of products for {precision}"):
            floor.seconds(options, work, rates, precision)
