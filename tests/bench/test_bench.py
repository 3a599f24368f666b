"""`elmo-fast bench`: its figures hang together, and numbers that are off are not timed."""

import json

import pytest

from benchmarks.common import Timing
from elmo_fast.bench import run as bench_run
from elmo_fast.bench import work
from elmo_fast.bench.timing import take_turns
from elmo_fast.bench.work import generated_sentences
from elmo_fast.ops.projected_lstm.cuda import choice
from tests.support.files import run, write_model


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


def test_the_command(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    model = write_model(tmp_path / "model")
    status, out, err = run(capsys, "bench", "--model", model, "--device", "cpu", "--seconds", 1,
                           "--json", tmp_path / "found.json", "--plot", tmp_path / "found.svg")
    assert status == 0, err
    found = json.loads((tmp_path / "found.json").read_text())
    assert f"{found['results'][0]['tokens_per_s']:,.0f}" in out and "peak memory" in out
    assert "tokens per second" in (tmp_path / "found.svg").read_text() or (tmp_path / "found.svg").stat().st_size > 2000


@pytest.mark.parametrize("arguments, message", [
    (["--plot", "x.jpg"], "--plot: expected a file that ends in .png, .svg or .pdf, got x.jpg"),
    (["--json", "absent/x.json"], "--json: expected an existing directory"),
    (["--seconds", "0"], "expected a number from 1 to 3600, got '0'"),
    (["--model", "absent"], "absent"),
])
def test_refusals(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "bench", *arguments)
    assert status == 2 and message in err and err.count("\n") == 1


def test_a_path_is_forced_in_the_body_alone(document, tmp_path, monkeypatch):
    elmo = bench_run.load(write_model(tmp_path / "model"), device="cpu")
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    with bench_run.Variant("graph path", "torch", "graph").active(elmo):
        assert elmo.bilm.backend == "torch" and bench_run.os.environ[choice.VARIABLE] == "graph"
    assert elmo.bilm.backend == "auto" and choice.VARIABLE not in bench_run.os.environ


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
