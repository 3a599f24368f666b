"""The CPU benchmarks in dry runs, at sizes that measure nothing: what they write, and what ends them."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import bench_embed, bench_table, bench_train, common, floor, latency, models, precisions, workloads
from benchmarks.peers import bilm_tf, external, tensorflow_elmo
from benchmarks.state_policies import main as compare_policies
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.model.weights import lstm_name
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.train.export import export_run
from elmo_fast.train.setup import start_or_resume
from tests.support.engines import needs_native
from tests.support.files import python
from tests.support.grid import mostly_long
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
    """Run a benchmark: its settings and results, or the reason on stderr for which it ended without a file."""
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
@pytest.mark.parametrize("asked", [("highest",), tuple(floor.PRECISIONS)],
                         ids=["highest", "all"])
def test_embedding_has_every_way_and_precision(bench, asked):
    settings, cases = bench(bench_embed, "--precisions", *asked)
    absent = {name: why for name, why in models.absent_precisions().items() if name in asked}
    assert settings["times_as_fast_as"] == "reference" and settings["absent"] == absent
    precisions = {*asked} - {*absent}
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


def test_a_gpu_has_the_way_from_ids_and_no_floor():
    """A device by another name than that of the CPU."""
    text, (peer, ours) = bench_embed.Text.read("running text", 2, 3), (
        models.Embedder(models.build("tiny", backend=backend, device="cpu:0")) for backend in ("reference", "auto"))
    setup = bench_embed.Setup("tiny", 3, "reference", peer, {"highest": ours}, {}, device="cpu:0")
    found = bench_embed.time_text(setup, text, 2, 1)
    assert all(speed > 0 for speed in found["from ids on the device", "ours", "highest"].samples)
    assert bench_embed.floors(setup, text, 1, bench_embed.no_rates) == (
        {}, {"highest": {"no_floor": "floors are those of a CPU"}})


@pytest.mark.long
def test_plain_backends_stand_beside_the_peer(bench):
    settings, cases = bench(bench_embed, "--plain", "reference", "torch", "--precisions", "highest")
    assert [case["variant"] for case in cases if case["way"] == "one batch of 3"] == ["reference", "torch", "ours"]
    assert [case["variant"] for case in cases if case["way"] == "one sentence"] == ["reference", "torch", "ours"]
    assert all(case["ratio_to"]["reference"] == case["times_as_fast"] for case in cases)
    assert all(case["ratio_to"].get(case["variant"], 1) == 1 < len(case["ratio_to"]) for case in cases)
    found = settings["agreement"]["errors"]["torch"]
    assert max(found["batches"]) <= found["limit"] and found["of_largest"] < found["limit_of_largest"] == 1e-5
    truth = [np.array([0.0, 4.0]), np.array([2.0])]
    assert bench_embed.share_of_largest([truth[0], np.array([2.5])], truth) == 0.125
    with pytest.raises(ValueError, match=r"torch: they disagree by 1.2e-05 of the largest value \(limit 1e-05\)"):
        bench_embed.check_slow("torch", [np.append(np.full((1, 10**6, 1), 1.0), 1 + 1.2e-5).reshape(1, -1, 1)],
                               [np.ones((1, 10**6 + 1, 1))])


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


@pytest.mark.parametrize("model, layers, width", mostly_long([
    ("tiny", 3, 32), ("bundled", 3, 384), (workloads.DEEP, 5, 256)], quick=2))
def test_models_in_memory_are_those_of_their_files(tmp_path, model, layers, width):
    from elmo_fast import BiLm

    files = models.write_files(tmp_path, model)
    for bilm in (models.build(model), BiLm.from_files(*files, state="carry")):
        assert (bilm.num_layers, bilm.get_output_dim()) == (layers, width)
        vectors = models.Embedder(bilm).embed_batch([["a", "b"]])[0]
        assert workloads.options_of(model)["lstm"]["n_layers"] == layers - 1
    assert np.abs(models.Embedder(models.build(model, backend="auto")).embed_batch([["a", "b"]])[0] - vectors
                  ).max() < 1e-5


@pytest.mark.long
def test_the_token_table_has_its_three_lines(bench):
    settings, cases = bench(bench_table, "--precisions", "highest")
    assert [(case["workload"], case["way"], case["variant"]) for case in cases] == [
        *(("running text", way, f"{which} a table") for which in ("without", "with")
          for way in ("slots of 3", "one batch of 3")),
        ("proteins", "batches of 60 residues", "reference"), ("proteins", "batches of 60 residues", "with a table"),
        ("proteins", "slots of 3", "with a table"),
        ("building", "vectors", "reference"), ("building", "vectors", "with a table")]
    for case in cases:
        assert len(case["samples"]) == 2 and (case["times_as_fast"] == 1 or case["variant"] == "with a table")
    facts = settings["lines"]
    assert facts["building tiny"]["words"] == 90 and facts["proteins tiny"]["sequences_a_batch"] == 3
    assert facts["running text tiny"]["largest_difference"] <= bench_table.SAME
    for case in cases:
        assert ("error" in case) == (case["variant"] == "with a table") and case.get("error", 0) <= case.get("limit", 0)


@pytest.mark.long
def test_the_token_table_runs_every_precision_there_is(bench):
    if "high" in models.absent_precisions():
        pytest.skip("16-bit tiles need AMX")
    settings, cases = bench(bench_table, "--lines", "proteins", "building")
    assert [(case["variant"], case["precision"]) for case in cases if case["workload"] == "building"] == [
        ("reference", "highest"), *(("with a table", name) for name in ("highest", "high", "medium", "low"))]
    errors = settings["lines"]["building tiny"]["errors"]
    assert settings["absent"] == {} and 0 < errors["highest"] < errors["high"] < errors["medium"]  # 16-bit products


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
    monkeypatch.setattr(models, "build", lambda size, **named: build(size, **{**named, "seed": next(seeds)}))
    assert message in bench(module, *arguments)


@pytest.mark.long
def test_single_ops_give_rows_of_the_same_shape(tmp_path):
    pytest.importorskip("pytest_benchmark")
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", "benchmarks/bench_ops", "--benchmark-only", "-k",
           "test_projected_lstm and small and b1 and torch", "--benchmark-min-rounds=2", "--rows",
           tmp_path / "ops.json", timeout=100, PYTEST_XDIST_WORKER="")  # in one of its processes nothing is timed
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
    one = compare_policies([str(tmp_path / "model"), str(text), "--output", str(tmp_path / "r.json")])
    assert one["zero"]["loss"] == pytest.approx(one["carry"]["loss"])  # one batch: carried starts from zeros too
    assert one["zero"]["distance_from_carried"] == 0 < one["warm"]["distance_from_carried"]
    many = compare_policies([str(tmp_path / "model"), str(text), "--batch-size", "1", "--warm-text", str(text)])
    assert many["zero"]["loss"] == pytest.approx(one["zero"]["loss"], rel=1e-5)
    assert many["zero"]["distance_from_carried"] > 0
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
        truth, found = (np.concatenate(each.embed(sentences), axis=1).astype(float) for each in (exact, elmo))
        cosines = (truth * found).sum(2) / np.linalg.norm(truth, axis=2) / np.linalg.norm(found, axis=2)
        errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found, truth)]
        low, high = row["quartiles"]
        assert 0 < low <= row["tokens_per_s"] <= high and row["sentence_ms"] > 0
        assert row["relative_errors"] == pytest.approx(errors, rel=1e-4, abs=1e-9)
        assert row["smallest_cosine"] == pytest.approx(cosines.min(), abs=1e-7)
    assert document["results"][0]["relative_errors"] == [0, 0, 0]


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
    rates = floor.Rates(threads=2, kib=1, fp32=1e9, read=4e9, bf16=0.0)  # a weight takes 1 ns to read, 2 to multiply
    assert floor.seconds(options, work, rates, "highest") == pytest.approx(floor.flop(options, work) / 1e9)
    slow = floor.Rates(threads=2, kib=1, fp32=1e9, read=1e9, bf16=0.0)  # 4 ns to read
    assert floor.seconds(options, work, slow, "highest") - floor.seconds(options, work, rates, "highest") == (
        pytest.approx(2 * floor.step_weights(options) * 2e-9))
    assert floor.seconds(options, work, slow, "medium") == floor.seconds(options, work, rates, "highest")  # 2 bytes
    tiles = dataclasses.replace(slow, bf16=9e9, bytes=4e9)
    assert floor.seconds(options, work, tiles, "low") < floor.seconds(options, work, tiles, "medium")
    for precision in ("high", "low"):
        with pytest.raises(floor.NoFloor, match=f"no rate of products for {precision}"):
            floor.seconds(options, work, rates, precision)


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


def test_allennlp_agrees_with_the_fixtures():
    checkout, shared = os.environ.get("ELMO_FAST_ALLENNLP"), common.shared_folder()
    if not checkout or not (shared / "fixtures").is_dir():
        pytest.skip("needs ELMO_FAST_ALLENNLP (a checkout of AllenNLP 0.9) and the shared fixtures")
    python("-m", "benchmarks.peers.allennlp", "--allennlp", checkout, "--shared", shared, timeout=100)


def test_a_peer_in_a_process_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('{\"ready\": 1}', flush=True)\nfor line in sys.stdin:\n"
                      "    print('{\"other\": 0}\\n{\"double\": %d}' % (2 * int(line)), flush=True)\n")
    with external.External("--peer", sys.executable, script) as peer:
        assert peer.answer("ready") == 1 and peer.folder.is_dir()
        peer.ask(21)
        assert peer.answer("double") == 42
        peer.ask("no number")
        with pytest.raises(RuntimeError, match=r"--peer: expected an answer, but its process ended:(.*\n)*ValueError"):
            peer.answer("double")
    assert not peer.folder.exists()
    with pytest.raises(RuntimeError, match="expected a Python that runs it, got /nowhere"):
        external.External("--peer", "/nowhere", script)


def test_a_tensorflow_peer_hands_its_vectors_over(tmp_path, monkeypatch):
    """With a worker that counts batches in place of TensorFlow."""
    worker = tmp_path / "worker.py"
    worker.write_text("""import json, sys
import numpy as np
print(json.dumps({"ready": " ".join([sys.argv[1], *sys.argv[5:]])}), flush=True)
batches = 0
for question in map(json.loads, sys.stdin):
    batches = 0 if "reset" in question else batches + 1
    if "file" in question:
        np.savez(question["file"], *(np.full((3, len(tokens), 2), batches) for tokens in question["embed"]))
    print(json.dumps({"done": True}), flush=True)
""")
    monkeypatch.setattr(tensorflow_elmo, "WORKER", worker)
    (tmp_path / "bilm").mkdir()
    (tmp_path / "bilm" / "model.py").touch()
    with tensorflow_elmo.TensorFlowElmo("bilm-tf", sys.executable, str(tmp_path), tmp_path, tmp_path, 64) as peer:
        assert peer.tensorflow == f"bilm-tf 64 {torch.get_num_threads()}"
        bench_embed.embedding(peer)([["a"]])
        found = peer.embed_batch([["a", "b"], ["c"]])
        assert [vectors.shape for vectors in found] == [(3, 2, 2), (3, 1, 2)] and np.all(found[0] == 2)
        assert np.all(bench_embed.run_over(peer, [[["a"]]])[0] == 1)


def test_bilm_tf_and_simple_elmo_give_the_same_vectors(bench):
    checkouts = [os.environ.get(f"ELMO_FAST_{name}") for name in ("BILM_TF", "SIMPLE_ELMO")]
    python = os.environ.get("ELMO_FAST_TF_PYTHON")
    if not all(checkouts) or not python:
        pytest.skip("needs ELMO_FAST_BILM_TF and ELMO_FAST_SIMPLE_ELMO (their sources), and ELMO_FAST_TF_PYTHON (a "
                    "Python with TensorFlow 2 and tf_keras)")
    assert tensorflow_elmo.WORKER.is_file()
    settings, cases = bench(bench_embed, "--bilm-tf", checkouts[0], "--simple-elmo", checkouts[1],
                            "--tf-python", python, "--peer-batches", "2")
    assert settings["times_as_fast_as"] == "bilm-tf" and settings["tensorflow"].startswith("2.")
    assert {case["variant"] for case in cases} == {"bilm-tf", "simple_elmo", "ours"}
    errors = settings["agreement"]["errors"]  # simple_elmo's graph is that of bilm-tf, its differences may be 0
    assert max(errors["simple_elmo"]["batches"] + errors["simple_elmo"]["sentence"]) < 4e-6
    assert 0 < max(errors["highest"]["batches"]) < 4e-6
    for case in cases:
        assert case["ratio_to"].keys() == {"bilm-tf", "simple_elmo"}
        assert case["ratio_to"]["bilm-tf"] == case["times_as_fast"] and case["ratio_to"].get(case["variant"], 1) == 1
