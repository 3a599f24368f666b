"""bilm-tf's two dumps, and its three usage scripts."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from elmo_fast import BiLm, ConfigurationError
from elmo_fast.compat.bilm import Batcher, dump_bilm_embeddings, dump_token_embeddings
from elmo_fast.embed import stream
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support import plain
from tests.support.files import ROOT, names, paths, tiny, write_model
from tests.support.models import files as model_files
from tests.support.models import options, weights

WORDS = ["<S>", "</S>", "<UNK>", "sea", "", "naïve", "東京", "w" * 60, "sea", "."]
LINES = ["the sea is grey", "  wide  and\tsalt ", "", "naïve\u00a0東京 .", "   ", "x" * 60, "the sea is grey"]


@pytest.fixture
def files(tmp_path):
    """A vocabulary, a text, and a model: the first arguments of both dumps."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return tmp_path / "vocab.txt", tmp_path / "text.txt", *model_files(tmp_path / "model", options())


def read(path):
    with h5py.File(path) as file:
        return {name: dataset[...] for name, dataset in file.items()}


def test_token_embeddings(tmp_path, files):
    vocab, _, *model = files
    dump_token_embeddings(vocab, *model, tmp_path / "out.hdf5")
    found = read(tmp_path / "out.hdf5")
    assert list(found) == ["embedding"]
    assert found["embedding"].dtype == np.float32 and found["embedding"].shape == (len(WORDS), 11)
    for ids, vector in zip(to_model_ids(encode_tokens(WORDS)), found["embedding"]):
        assert np.abs(vector - plain.token_vector(ids, weights(options()), options())).max() < 5e-6
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert file.attrs["fingerprint"] == BiLm.from_files(*model).fingerprint()


def test_token_embeddings_of_more_words_than_run_at_once(tmp_path, files, monkeypatch):
    monkeypatch.setattr("elmo_fast.compat.bilm.model._WORDS_PER_BLOCK", 3)
    dump_token_embeddings(files[0], *files[2:], tmp_path / "out.hdf5", progress=False)
    expected = BiLm.from_files(*files[2:]).encode(WORDS).detach().numpy()
    assert np.abs(read(tmp_path / "out.hdf5")["embedding"] - expected).max() < 1e-6


def test_token_embeddings_that_tensorflow_wrote(tmp_path, shared):
    folder = shared / "fixtures" / "allennlp"
    dump_token_embeddings(folder / "vocab_test.txt", folder / "options.json", folder / "lm_weights.hdf5",
                          tmp_path / "out.hdf5", progress=False)
    found, expected = read(tmp_path / "out.hdf5")["embedding"], read(folder / "elmo_token_embeddings.hdf5")["embedding"]
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5


def test_bilm_embeddings_carry_the_state_from_line_to_line(tmp_path, files):
    """A blank line too: it has no tokens, and bilm-tf runs it as <S> </S>."""
    vocab, text, *model = files
    dump_bilm_embeddings(vocab, text, *model, tmp_path / "out.hdf5")
    found = read(tmp_path / "out.hdf5")
    assert sorted(found) == [str(number) for number in range(len(LINES))]
    states, batcher = None, Batcher(vocab, 50)
    for number, line in enumerate(LINES):
        layers, states = plain.layers(batcher.batch_sentences([line.split()])[0], weights(options()), options(), states)
        vectors = found[str(number)]
        assert vectors.dtype == np.float32 and vectors.shape == (3, len(line.split()), 22)
        assert np.abs(vectors - layers[:, 1:-1]).max(initial=0) < 1e-5
    assert np.abs(found["0"] - found["6"])[1:].max() > 1e-3


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_bilm_embeddings_in_batches(tmp_path, files, batch_size, backend):
    vocab, text, *model = files
    dump_bilm_embeddings(vocab, text, *model, tmp_path / "out.hdf5", batch_size=batch_size, backend=backend)
    found, bilm = read(tmp_path / "out.hdf5"), BiLm.from_files(*model)
    sentences = [line.split() for line in LINES]
    for first in range(0, len(sentences), batch_size):
        layers, lengths = bilm.embed_tokens(sentences[first : first + batch_size])
        ends = np.cumsum(lengths)
        for number, (end, length) in enumerate(zip(ends, lengths), start=first):
            expected = np.stack([layer[end - length + 1 : end - 1].detach().numpy() for layer in layers])
            assert np.abs(found[str(number)] - expected).max(initial=0) < 5e-6


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_without_carried_states_the_batch_does_not_matter(tmp_path, files, state):
    for size in (1, 4):
        dump_bilm_embeddings(*files, tmp_path / f"{size}.hdf5", batch_size=size, state=state, progress=False)
    one, four = read(tmp_path / "1.hdf5"), read(tmp_path / "4.hdf5")
    assert all(np.abs(one[name] - four[name]).max(initial=0) < 2e-6 for name in one) and len(four) == len(LINES)
    assert np.abs(one["0"] - one["6"]).max() < 2e-6


def test_an_interrupted_dump_leaves_the_old_file(tmp_path, files, monkeypatch):
    vocab, text, *model = files
    target = tmp_path / "out.hdf5"
    target.write_text("old")
    before = names(tmp_path)
    monkeypatch.setattr(stream.SlotStream, "_collect", lambda self, chunk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dump_bilm_embeddings(vocab, text, *model, target, progress=False)
    monkeypatch.setattr(BiLm, "encode", lambda self, tokens: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dump_token_embeddings(vocab, *model, target, progress=False)
    assert target.read_text() == "old" and names(tmp_path) == before


def test_what_is_refused(tmp_path, files):
    vocab, text, *model = files
    target = tmp_path / "out.hdf5"
    (tmp_path / "bare.txt").write_text("sea\nsalt\n", encoding="utf-8")
    for call in (lambda: dump_token_embeddings(tmp_path / "bare.txt", *model, target),
                 lambda: dump_bilm_embeddings(tmp_path / "bare.txt", text, *model, target)):
        with pytest.raises(ValueError, match="vocabulary .*missing <S>, </S>"):
            call()
    for size in (0, True, 1.5):
        with pytest.raises(ValueError, match="batch_size: expected an integer of at least 1"):
            dump_bilm_embeddings(*files, target, batch_size=size)
    with pytest.raises(FileNotFoundError, match="outfile: expected an existing directory"):
        dump_token_embeddings(vocab, *model, tmp_path / "none" / "out.hdf5")
    with pytest.raises(FileNotFoundError, match="existing directory"):
        dump_bilm_embeddings(*files, tmp_path / "none" / "out.hdf5")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ConfigurationError, match="got an empty file"):
        dump_bilm_embeddings(vocab, tmp_path / "empty.txt", *model, target)
    content = tiny(n_tokens_vocab=9)
    del content["char_cnn"]
    with pytest.raises(ConfigurationError, match="options_file: expected the section char_cnn"):
        dump_token_embeddings(vocab, *paths(write_model(tmp_path / "words", content)), target)
    assert not target.exists()


def usage(script, *arguments):
    return subprocess.run([sys.executable, ROOT / "examples" / script, *arguments], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("script, shows", [
    ("usage_character.py", ["context at the input: (2, 12, 32)", "question at the input: (1, 6, 32)", "three steps"]),
    ("usage_cached.py", ["layers of the second sentence: (3, 12, 32)", "their mixture: (1, 12, 32)"]),
    ("usage_token.py", ["context at the input: (2, 12, 32)", "question at the input: (1, 6, 32)"]),
])
@pytest.mark.long
def test_usage(tmp_path, script, shows):
    done = usage(script, "--folder", tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(line in done.stdout for line in shows)


@pytest.mark.long
def test_usage_with_a_model_of_ones_own(tmp_path, files):
    vocab, _, options_file, weight_file = files
    done = usage("usage_cached.py", "--folder", tmp_path, "--options-file", options_file, "--weight-file", weight_file,
                 "--vocab-file", vocab)
    assert done.returncode == 0, done.stderr
    assert "(3, 12, 22)" in done.stdout
    found = read(tmp_path / "elmo_embeddings.hdf5")
    assert {name: len(layers[0]) for name, layers in found.items()} == {"0": 9, "1": 12, "2": 6}
