"""The training benchmark's own parts: turns, names, its file. bilm-tf's side runs only where TensorFlow is."""

import json

import pytest

from benchmarks import bench_train, state_policies
from elmo_fast.model.weights import lstm_name
from elmo_fast.train.export import export_run
from elmo_fast.train.setup import start_or_resume
from tests.support.training import TINY, write_corpus, write_options


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setitem(bench_train.SIZES, "tiny", (*bench_train.SIZES["tiny"][:5], 7, 28))
    return write_corpus(tmp_path / "text", sentences=60)


def test_it_writes_speed_and_perplexity(tmp_path, corpus):
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


def test_sides_take_turns_and_change_who_is_first():
    calls = []

    class Side:
        def __init__(self, name):
            self.name = name

        def turn(self, steps):
            calls.append((self.name, steps))
            return 1.0

    seconds = bench_train.by_turns({"a": Side("a"), "b": Side("b")}, 5, 2)
    assert calls == [("a", 2), ("b", 2), ("b", 2), ("a", 2), ("a", 1), ("b", 1)]
    assert seconds == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_variables_have_the_names_of_the_dump():
    cell = "RNN_1/rnn/multi_rnn_cell/cell_0/lstm_cell"
    assert bench_train.ours_name(f"{cell}/kernel") == lstm_name(1, 0, "W_0")
    assert bench_train.ours_name(f"{cell}/bias") == lstm_name(1, 0, "B")
    assert bench_train.ours_name(f"{cell}/projection/kernel") == lstm_name(1, 0, "W_P_0")
    assert bench_train.ours_name("softmax/W") == "softmax/W"


def test_state_policies_agree_where_they_must(tmp_path, corpus):
    start_or_resume(tmp_path / "run", train=[corpus[0]], vocab=str(corpus[1]), max_steps=30, quiet=True,
                    options_file=write_options(tmp_path / "o.json", TINY))
    export_run(tmp_path / "run", tmp_path / "model", softmax=True)
    text = tmp_path / "one.txt"
    text.write_text("ka lo mi\npo ru\nka ka\n")
    one = state_policies.main([str(tmp_path / "model"), str(text), "--output", str(tmp_path / "r.json")])
    assert one["zero"]["loss"] == pytest.approx(one["carry"]["loss"])  # one batch: carried starts from zeros too
    assert one["zero"]["distance_from_carried"] == 0 < one["warm"]["distance_from_carried"]
    many = state_policies.main([str(tmp_path / "model"), str(text), "--batch-size", "1", "--warm-text", str(text)])
    assert many["zero"]["loss"] == pytest.approx(one["zero"]["loss"], rel=1e-5)
    assert many["zero"]["distance_from_carried"] > 0
    assert json.loads((tmp_path / "r.json").read_text())["results"].keys() == {"zero", "warm", "carry"}
