"""`elmo-fast bench`: its figures hang together, and numbers that are off are not timed."""

import json

import h5py
import numpy as np
import pytest

from benchmarks.common import Timing
from benchmarks.workloads import running_text
from elmo_fast.bench import run as bench_run
from elmo_fast.bench import work
from elmo_fast.bench.precisions import head_beside, perplexity
from elmo_fast.bench.timing import take_turns
from elmo_fast.bench.work import generated_sentences
from elmo_fast.embed.api import load
from elmo_fast.model.sources import find_model
from elmo_fast.ops.precision import PRECISIONS
from tests.support.engines import isa, needs_native
from tests.support.files import run, tiny, write_model
from tests.support.softmax import SENTENCES, WORDS, write_softmax_model


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    return bench_run.bench(write_model(tmp_path_factory.mktemp("model")), "cpu", seconds=1.0)


def test_the_rows_hang_together(document):
    assert {"cpu", "gpu", "torch", "torch_threads"} <= set(document["machine"]) and document["version"]
    facts = document["settings"]
    assert facts["device"] == "cpu" and facts["tokens"] > facts["sentences"] >= bench_run.SLOTS
    assert set(facts["backends"]) == {"char_cnn", "highway", "linear", "projected_lstm"}
    assert document["results"][-1]["variant"] == "torch"
    for row in document["results"]:
        low, high = row["quartiles"]
        assert 0 < low <= row["tokens_per_s"] <= high and row["sentence_ms"] > 0
        assert 0 <= row["error"] <= facts["limit"]
        assert row["share"] == pytest.approx(row["flop_per_s"] / row["ceiling_flop_per_s"], rel=1e-3)
        flop_a_token = row["flop_per_s"] / row["tokens_per_s"]
        assert flop_a_token == pytest.approx(document["results"][0]["flop_per_s"] /
                                             document["results"][0]["tokens_per_s"], rel=1e-3)


def test_numbers_that_are_off_end_the_run(tmp_path, monkeypatch):
    right = bench_run._embed
    monkeypatch.setattr(bench_run, "_embed", lambda elmo, variant, sentences: [
        vectors + (variant.name == "torch") for vectors in right(elmo, variant, sentences)])
    with pytest.raises(RuntimeError, match="torch: expected numbers within 1e-05 of the reference path's, got"):
        bench_run.bench(write_model(tmp_path / "model"), "cpu", seconds=1.0)


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    model = write_model(tmp_path / "model")
    status, out, err = run(capsys, "bench", "--model", model, "--device", "cpu", "--seconds", 1, "--precision", "low",
                           "--json", tmp_path / "found.json", "--plot", tmp_path / "found.svg")
    assert status == 0, err
    found = json.loads((tmp_path / "found.json").read_text())
    assert f"{found['results'][0]['tokens_per_s']:,.0f}" in out and "peak memory" in out
    assert found["settings"]["precision"] == "low"
    assert all(("share" in row) == (found["settings"]["computes_in"] != "low") for row in found["results"])
    assert "tokens per second" in (tmp_path / "found.svg").read_text() or (tmp_path / "found.svg").stat().st_size > 2000


@pytest.mark.parametrize("arguments, message", [
    (["--plot", "x.jpg"], "--plot: expected a file that ends in .png, .svg or .pdf, got x.jpg"),
    (["--json", "absent/x.json"], "--json: expected an existing directory"),
    (["--seconds", "0"], "expected a number from 1 to 3600, got '0'"),
    (["--model", "absent"], "absent"),
    (["--precisions", "lowest"], "argument --precisions: invalid choice: 'lowest'"),
    (["--precisions", "low", "--precision", "low"], "argument --precision: not allowed with argument --precisions"),
    (["--text", "absent.txt"], "absent.txt"), (["--text", "empty.txt"], "input file: expected one tokenized"),
])
def test_refusals(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    status, _, err = run(capsys, "bench", *arguments)
    assert status == 2 and message in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def model_and_text(tmp_path_factory):
    """A model with a softmax, large enough for its precisions to differ, and 70 sentences, more than a batch."""
    folder = tmp_path_factory.mktemp("softmax")
    (folder / "text.txt").write_text("".join(" ".join(words) + "\n" for words in SENTENCES if words) * 24)
    return write_softmax_model(folder / "model", tiny(lstm__dim=48, lstm__projection_dim=16)), folder / "text.txt"


def expected_figures(model, sentences, precision):
    """What the command says of a precision, from vectors, in numpy."""
    exact, elmo = (load(model, device="cpu", precision=name) for name in ("highest", precision))
    truth, found = (np.concatenate(each.embed(sentences), axis=1).astype(float) for each in (exact, elmo))
    cosines = (truth * found).sum(2) / np.linalg.norm(truth, axis=2) / np.linalg.norm(found, axis=2)
    with h5py.File(model / "softmax.hdf5") as file:
        w, b = file["softmax/W"][()].astype(float), file["softmax/b"][()].astype(float)
    losses = []
    for sentence in sentences:
        (*_, top), _ = elmo.bilm.embed_tokens([sentence])
        scores = top.double().detach().numpy().reshape(len(top), 2, -1) @ w.T + b  # [T + 2, 2, words]
        logs = scores - np.log(np.exp(scores).sum(2, keepdims=True))
        ids = [WORDS.index(word if word in WORDS else "<UNK>") for word in ("<S>", *sentence, "</S>")]
        losses += [-logs[k, 0, ids[k + 1]] for k in range(len(ids) - 1)]
        losses += [-logs[k, 1, ids[k - 1]] for k in range(1, len(ids))]
    errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found, truth)]
    return {"relative_errors": errors, "smallest_cosine": cosines.min(), "perplexity": np.exp(np.mean(losses))}


@pytest.mark.long
def test_precisions_have_the_figures_of_their_vectors(model_and_text):
    model, text = model_and_text
    document = bench_run.bench_precisions(model, "cpu", seconds=1.0, text_file=text)
    facts, rows = document["settings"], document["results"]
    sentences = [line.split() for line in text.read_text().splitlines()][: facts["sentences"]]
    assert facts["text"] == "text.txt" and facts["tokens"] == sum(map(len, sentences)) and len(sentences) >= 64
    assert [row["variant"] for row in rows] == facts["precisions"] == list(PRECISIONS)
    for row in rows:
        low, high = row["quartiles"]
        assert 0 < low <= row["tokens_per_s"] <= high and row["sentence_ms"] > 0
        for name, value in expected_figures(model, sentences, row["variant"]).items():
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-9), (row["variant"], name)
    assert rows[0]["relative_errors"] == [0, 0, 0] and rows[0]["perplexity"] > 1


@pytest.mark.long
def test_perplexity_of_a_trained_model_in_every_precision(shared, tmp_path, capsys, monkeypatch):
    """The bundled model, fine-tuned with a softmax over 3,000 words until it is far better than chance."""
    monkeypatch.chdir(tmp_path)
    lines = [" ".join(words) + "\n" for words in running_text(3200)[0]]
    (tmp_path / "train.txt").write_text("".join(lines[:3000]), encoding="utf-8")
    (tmp_path / "text.txt").write_text("".join(lines[3000:]), encoding="utf-8")
    training = ("--max-steps 30 --batch-size 64 --full-softmax --optimizer adamw --learning-rate 0.003 "
                "--warmup-steps 5 --precision highest --quiet")
    for command in ("vocab train.txt vocab.txt --min-count 3",
                    f"train run --from-model bundled --train train.txt --vocab vocab.txt {training}",
                    "export run model --softmax"):
        assert run(capsys, *command.split())[0] == 0
    elmo, sentences = load("model", device="cpu"), [line.split() for line in lines[3000:]]
    head = head_beside(elmo, find_model("model"))
    found = {}
    for name in PRECISIONS:
        with bench_run.Variant(name, precision=name).active(elmo):
            found[name] = perplexity(head, sentences)
    assert 10 < found["highest"] < 150 and found["low"] != found["highest"]
    for name, limit in (("high", 1e-5), ("medium", 1e-3), ("low", 7e-3)):
        assert found[name] == pytest.approx(found["highest"], rel=limit), name


@pytest.mark.long
@needs_native
def test_a_precision_that_runs_as_another_is_named(model_and_text, capsys, tmp_path):
    model, text = model_and_text
    with isa("avx2"):
        status, out, err = run(capsys, "bench", "--model", model, "--precisions", "low", "high", "highest", "--text",
                               text, "--device", "cpu", "--seconds", 1, "--json", tmp_path / "found.json")
    assert status == 0, err
    rows = json.loads((tmp_path / "found.json").read_text())["results"]
    assert [(row["variant"], row["runs_as"]) for row in rows] == [
        ("low", "low"), ("high", "highest"), ("highest", "highest")]
    assert {**rows[1], "variant": "highest"} == rows[2] and rows[0]["relative_errors"][1] > 1e-4
    assert "high runs as highest here" in out and "low runs as" not in out
    for row in rows:
        line = next(line for line in out.splitlines() if line.startswith(f"{row['variant']:16}"))
        assert f"{row['tokens_per_s']:,.0f}" in line and f"{row['perplexity']:.4f}" in line
        assert all(f"{error:.1e}" in line for error in row["relative_errors"])


@pytest.mark.long
def test_without_a_softmax_the_report_says_how_to_get_perplexity(tmp_path):
    document = bench_run.bench_precisions(write_model(tmp_path / "model"), "cpu", ["low"], seconds=1.0)
    assert "perplexity" not in document["results"][0]
    assert "elmo-fast export RUN OUTPUT --softmax" in "\n".join(bench_run.report(document))
    with pytest.raises(ValueError, match="precision: expected one of highest, high, medium, low, got 'lowest'"):
        bench_run.bench_precisions(tmp_path / "model", "cpu", ["low", "lowest"])


def test_work_of_a_text():
    sentences = [["a", "bc"], ["a"]]
    of = work.work_of_slots(sentences, 64)
    assert of.tokens == 3 and of.batch_sizes.tolist() == [2, 2, 2, 1]
    assert sorted(of.characters.tolist()) == [3, 3, 3, 4]
    words = {"lstm": {"dim": 8, "projection_dim": 4, "n_layers": 2}}
    step = 2 * (4 * 8 * 4 + 8 * 4)
    inputs = 2 * 2 * 4 * 32
    assert work.flop(words, of) == 2 * 2 * step * 7 + inputs * (4 + 7)


def test_text_and_turns():
    sentences = generated_sentences(50)
    assert sentences == generated_sentences(50) and all(1 <= len(tokens) <= 120 for tokens in sentences)
    order = []
    take_turns({name: lambda name=name: order.append(name) or 1.0 for name in "abc"}, 3)
    assert order == list("abcbcacab")
    timing = Timing.of([1.0, 2.0, 3.0])
    assert timing.median == 2.0 and timing.times_as_fast_as(Timing.of([2.0, 4.0, 6.0])) == 2.0
    assert 1.0 < timing.p20 < 2.0 < timing.p80 < 3.0
