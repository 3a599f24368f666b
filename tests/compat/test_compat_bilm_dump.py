"""bilm-tf's two dumps, and its three usage scripts."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from elmo_fast import BiLm
from elmo_fast.compat.bilm import Batcher, dump_bilm_embeddings, dump_token_embeddings
from elmo_fast.embed import stream
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support import plain
from tests.support.files import ROOT, names, read_hdf5, tiny, write_model
from tests.support.models import options, weights

WORDS = ["<S>", "</S>", "<UNK>", "sea", "", "naïve", "東京", "w" * 60, "sea", "."]
LINES = ["the sea is grey", "  wide  and\tsalt ", "", "naïve\u00a0東京 .", "   ", "x" * 60, "the sea is grey"]


@pytest.fixture
def inputs(tmp_path, files):
    """A vocabulary, a text, and a model: the first arguments of both dumps."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return tmp_path / "vocab.txt", tmp_path / "text.txt", *files


@pytest.mark.parametrize("block", [3, 4096])
def test_token_embeddings(tmp_path, inputs, monkeypatch, block):
    monkeypatch.setattr("elmo_fast.compat.bilm.model._WORDS_PER_BLOCK", block)
    vocab, _, *model = inputs
    dump_token_embeddings(vocab, *model, tmp_path / "out.hdf5")
    found = read_hdf5(tmp_path / "out.hdf5")
    assert list(found) == ["embedding"]
    assert found["embedding"].dtype == np.float32 and found["embedding"].shape == (len(WORDS), 11)
    for ids, vector in zip(to_model_ids(encode_tokens(WORDS)), found["embedding"]):
        assert np.abs(vector - plain.token_vector(ids, weights(options()), options())).max() < 5e-6
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file.attrs["fingerprint"] == BiLm.from_files(*model).fingerprint()


def test_token_embeddings_that_tensorflow_wrote(tmp_path, shared):
    folder = shared / "fixtures" / "allennlp"
    dump_token_embeddings(folder / "vocab_test.txt", folder / "options.json", folder / "lm_weights.hdf5",
                          tmp_path / "out.hdf5", progress=False)
    found, expected = (read_hdf5(path)["embedding"] for path in (tmp_path / "out.hdf5",
                                                                 folder / "elmo_token_embeddings.hdf5"))
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("batch_size, backend", [(1, "auto"), (1, "reference"), (3, "reference"), (3, "torch")])
def test_bilm_embeddings_carry_the_state_from_line_to_line(tmp_path, inputs, batch_size, backend):
    """A blank line too: it has no tokens, and bilm-tf runs it as <S> </S>."""
    dump_bilm_embeddings(*inputs, tmp_path / "out.hdf5", batch_size=batch_size, backend=backend)
    found, batcher = read_hdf5(tmp_path / "out.hdf5"), Batcher(inputs[0], 50)
    assert sorted(found) == [str(number) for number in range(len(LINES))]
    states = [None] * batch_size
    for number, line in enumerate(LINES):
        row = number % batch_size
        layers, states[row] = plain.layers(batcher.batch_sentences([line.split()])[0], weights(options()), options(),
                                           states[row])
        vectors = found[str(number)]
        assert vectors.dtype == np.float32 and vectors.shape == (3, len(line.split()), 22)
        assert np.abs(vectors - layers[:, 1:-1]).max(initial=0) < 1e-5
    assert np.abs(found["0"] - found["6"])[1:].max() > 1e-3


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_without_carried_states_the_batch_does_not_matter(tmp_path, inputs, state):
    for size in (1, 4):
        dump_bilm_embeddings(*inputs, tmp_path / f"{size}.hdf5", batch_size=size, state=state, progress=False)
    one, four = read_hdf5(tmp_path / "1.hdf5"), read_hdf5(tmp_path / "4.hdf5")
    assert all(np.abs(one[name] - four[name]).max(initial=0) < 2e-6 for name in one) and len(four) == len(LINES)
    assert np.abs(one["0"] - one["6"]).max() < 2e-6


def test_an_interrupted_dump_leaves_the_old_file(tmp_path, inputs, monkeypatch):
    target = tmp_path / "out.hdf5"
    target.write_text("old")
    before = names(tmp_path)
    monkeypatch.setattr(stream.SlotStream, "_collect", lambda self, chunk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dump_bilm_embeddings(*inputs, target, progress=False)
    monkeypatch.setattr(BiLm, "encode", lambda self, tokens: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dump_token_embeddings(inputs[0], *inputs[2:], target, progress=False)
    assert target.read_text() == "old" and names(tmp_path) == before


@pytest.mark.parametrize("dump, change, why", [
    *((dump, {"vocab_file": "bare.txt"}, "vocabulary .*missing <S>, </S>")
      for dump in (dump_token_embeddings, dump_bilm_embeddings)),
    *((dump_bilm_embeddings, {"batch_size": size}, "batch_size: expected an integer of at least 1")
      for size in (0, True, 1.5)),
    (dump_token_embeddings, {"outfile": "none/out.hdf5"}, "outfile: expected an existing directory"),
    (dump_bilm_embeddings, {"outfile": "none/out.hdf5"}, "output file: expected an existing directory"),
    (dump_bilm_embeddings, {"dataset_file": "empty.txt"}, ".*got an empty file"),
    *((dump, {"options_file": "words/options.json", "weight_file": "words/weights.hdf5"},
       "options_file: expected the section char_cnn") for dump in (dump_token_embeddings, dump_bilm_embeddings)),
])
def test_refuses(tmp_path, inputs, dump, change, why):
    (tmp_path / "bare.txt").write_text("sea\nsalt\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("")
    content = tiny(n_tokens_vocab=9)
    del content["char_cnn"]
    write_model(tmp_path / "words", content)
    arguments = dict(zip(("vocab_file", "dataset_file", "options_file", "weight_file"), inputs), outfile="out.hdf5")
    arguments |= change
    arguments = {name: value if name == "batch_size" else tmp_path / value for name, value in arguments.items()
                 if name != "dataset_file" or dump is dump_bilm_embeddings}
    with pytest.raises(FileNotFoundError if "directory" in why else ValueError, match=f"^{why}"):
        dump(**arguments)
    assert not (tmp_path / "out.hdf5").exists()


def usage(script, *arguments):
    done = subprocess.run([sys.executable, ROOT / "examples" / script, *arguments], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script, shows", [
    ("usage_character.py", ["context at the input: (2, 12, 32)", "question at the input: (1, 6, 32)", "three steps"]),
    ("usage_cached.py", ["layers of the second sentence: (3, 12, 32)", "their mixture: (1, 12, 32)"]),
    ("usage_token.py", ["context at the input: (2, 12, 32)", "question at the input: (1, 6, 32)"]),
])
@pytest.mark.long
def test_usage(tmp_path, script, shows):
    out = usage(script, "--folder", tmp_path)
    assert all(line in out for line in shows)


@pytest.mark.long
def test_usage_with_a_model_of_ones_own(tmp_path, inputs):
    vocab, _, options_file, weight_file = inputs
    assert "(3, 12, 22)" in usage("usage_cached.py", "--folder", tmp_path, "--options-file", options_file,
                                  "--weight-file", weight_file, "--vocab-file", vocab)
    found = read_hdf5(tmp_path / "elmo_embeddings.hdf5")
    assert {name: len(layers[0]) for name, layers in found.items()} == {"0": 9, "1": 12, "2": 6}
