"""Corpora in parts: a resumed run gives the output of an uninterrupted run."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, FastaRecord, open_embeddings
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.embed.run import write_corpus
from elmo_fast.text.readers import Text
from elmo_fast.vectors.spec import Target
from tests.support.files import names
from tests.support.grid import grid
from tests.support.models import bilm
from tests.support.sections import TEXTS, content, embed, model, power_cut

pytestmark = pytest.mark.usefixtures("short_sections")
COLUMNS = [("parquet", "o"), ("arrow", "o.arrow")] if find_spec("pyarrow") else []


@pytest.mark.parametrize("state, slots, cuts, layout", grid(
    ["carry", "zero", "warm"], [1, 3, 64], [(1,), (2, 1), (4, 3, 1)],
    [("allennlp", "o.h5"), ("npz", "o.npz"), *COLUMNS], together=1))
def test_a_resumed_run_gives_the_output_of_an_uninterrupted_run(tmp_path, state, slots, cuts, layout):
    layout, name = layout
    (tmp_path / "whole").mkdir()
    whole, output = tmp_path / "whole" / name, tmp_path / name
    expected_states = embed(whole, state, slots, layout=layout, seconds=1000)
    for count in cuts:
        if slots > len(TEXTS):
            break  # a single batch cannot be cut
        with power_cut(count):
            embed(output, state, slots, layout=layout, resume=True)
        assert names(tmp_path) == [f"{name}.part", "whole"]
    states = embed(output, state, slots, layout=layout, resume=True)
    assert content(output) == content(whole) and names(tmp_path) == [name, "whole"]
    for actual, expected in zip(states or (), expected_states or (), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("state", ["carry", "warm"])
def test_sections_do_not_change_a_result(tmp_path, state, count):
    for name, seconds in (("a.h5", 1000), ("b.h5", 0)):
        embed(tmp_path / name, state, 2, TEXTS[:count], seconds=seconds)
    assert content(tmp_path / "a.h5") == content(tmp_path / "b.h5") and names(tmp_path) == ["a.h5", "b.h5"]
    expected = list(model(state).embed_sentences(TEXTS[:count], 2))
    assert content(tmp_path / "a.h5")[1] == [values.tobytes() for values in expected]


@pytest.mark.parametrize("name", ["o", "o/"])
def test_saved_vectors_are_a_directory_however_few(tmp_path, name):
    pytest.importorskip("pyarrow")
    elmo = LoadedElmo(bilm(state="warm"))
    elmo.save_vectors(f"{tmp_path}/{name}", ["one text", "two"], 1, layout="parquet")
    assert names(tmp_path) == ["o"] and names(tmp_path / "o") == ["00000.parquet"]
    with open_embeddings(tmp_path / "o") as embeddings:
        assert embeddings.layers == 1
        for values, expected in zip(embeddings, elmo.embed(["one text", "two"], "all"), strict=True):
            np.testing.assert_array_equal(values, expected[1])


def test_the_batch_size_may_change_where_states_are_not_carried(tmp_path):
    embed(tmp_path / "whole.h5", "warm")
    with power_cut(2):
        embed(tmp_path / "o.h5", "warm")
    embed(tmp_path / "o.h5", "warm", 7, resume=True)
    assert content(tmp_path / "o.h5") == content(tmp_path / "whole.h5")


def test_saved_vectors_are_resumed(tmp_path):
    elmo = LoadedElmo(bilm(state="warm"))
    texts = ["one text", ["two", "tokens"], FastaRecord("P1 a protein", "MKV"), Text("id", "a b", ["a", "b"])] * 2
    with power_cut(3):
        elmo.save_vectors(tmp_path / "o.npy", texts, "top", pool="mean", batch_size=2, dtype="float16")
    elmo.save_vectors(tmp_path / "o.npy", texts, "top", pool="mean", batch_size=2, dtype="float16", resume=True)
    expected = np.stack(elmo.embed(texts, "top", pool="mean")).astype(np.float16)
    assert np.array_equal(np.load(tmp_path / "o.npy"), expected) and names(tmp_path) == ["o.json", "o.npy"]
    assert json.loads((tmp_path / "o.json").read_text()) == ["0", "1", "P1", "id", "4", "5", "P1", "id"]


# ---- the thread that writes: its errors reach the caller, keys stay unique across segments ----


def test_errors_of_the_writer_reach_the_caller(tmp_path):
    texts = (Text("a/." if number == 7 else str(number), "a", ["a"]) for number in range(100))
    with pytest.raises(ConfigurationError, match="got 'a/.'"):
        write_corpus(texts, model("zero").runner(1), Target(tmp_path / "o.h5", "allennlp"), commit_seconds=1000)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name, options, keys, message", [
    *(("o.h5", {}, keys, "output: expected different identifiers, got ") for keys in (
        ["0", "1", "01", "2", "1"], ["a/c", "a/b/c", "1", "a/b"], ["a", "1", "2", "a/b"])),
    ("o.npz", {}, ["a", "a/b", "2", "a"], "output: expected different identifiers, got 'a' twice"),
    ("o.h5", {"use_sentence_keys": True}, ["a", "b", "b"],
     "use_sentence_keys: expected different sentences, got 'b' twice")])
def test_keys_that_clash_are_refused_at_once(tmp_path, name, options, keys, message):
    def texts():
        for number, key in enumerate(keys):
            yield Text(str(number) if options else key, key, ["a"])
        pytest.fail("read to the end")

    target = Target(tmp_path / name, "npz" if name == "o.npz" else "allennlp", options=options)
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        write_corpus(texts(), model("zero").runner(1), target)
