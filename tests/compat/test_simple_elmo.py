import gzip
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from elmo_fast import BiLm, ElmoEmbedder, batch_to_ids
from elmo_fast.compat.simple_elmo import ElmoModel
from elmo_fast.testing import SAME_MODEL
from tests.support.files import paths, tiny, write_model
from tests.support.manylangs import write_manylangs
from tests.support.softmax import write_softmax_model

TEXTS = ["The cat sat on the mat".split(), ["One"], "A much longer sentence than all of the others".split(),
         [], "naïve café".split()]


def load(directory, max_batch_size=2, full=False, **arguments):
    model = ElmoModel(**arguments)
    assert model.load(directory, max_batch_size=max_batch_size, limit=100, full=full) is None
    return model


@pytest.fixture
def full(folder):
    """A model with a softmax of eight words."""
    return write_softmax_model(folder, tiny(lstm__dim=12), "<S> </S> <UNK> the cat sat on mat".split())


def check(vectors, averages, layers, texts, arrays):
    for row, average, text, values in zip(vectors, averages, texts, arrays, strict=True):
        expected = {"all": values, "top": values[2], "average": (values[0] + values[1] + values[2]) / 3}[layers]
        np.testing.assert_allclose(row[..., : len(text), :], expected, rtol=0, atol=SAME_MODEL)
        assert not row[..., len(text) :, :].any()
        mean = expected.mean(-2) if text else np.zeros_like(average)
        norm = np.sqrt((mean**2).sum(-1, keepdims=True)) if text else 1
        np.testing.assert_allclose(average, mean / norm, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers, warmup, size", [("average", True, 2), ("top", True, 1), ("top", False, 2),
                                                  ("all", True, 32), ("all", False, 3)])
def test_vectors_and_averages_of_layers(folder, layers, warmup, size):
    """Of those that tests/compat/test_carried_states.py compares with the plain model."""
    model = load(folder, size)
    for texts in (TEXTS, TEXTS[3:], TEXTS):
        arrays = [layers[:, : len(text)] for layers, text in zip(model.get_elmo_vectors(texts, warmup, "all"), texts)]
        settings = () if warmup and layers == "average" else (warmup, layers)
        check(model.get_elmo_vectors(texts, *settings), model.get_elmo_vector_average(texts, *settings), layers, texts,
              arrays)
    vectors, averages = model.get_elmo_vectors(TEXTS, *settings), model.get_elmo_vector_average(TEXTS, *settings)
    axes = (5, 3) if layers == "all" else (5,)
    assert vectors.shape == (*axes, 9, 8) and averages.shape == (*axes, 8) and vectors.dtype == np.float32


@pytest.mark.parametrize("has_vocabulary", [True, False])
def test_delft_names_the_files_and_batches_sentences_itself(full, has_vocabulary):
    """DeLFT's calls: `load` with three files, then `batcher` for lengths, then vectors with a session of its own."""
    model, by_folder, session = ElmoModel(), load(full), object()
    options, weights = paths(full)
    vocabulary = (full / "vocab.txt").rename(full.parent / "words.txt") if has_vocabulary else None
    (full / "vocab.txt").unlink(missing_ok=True)
    model.load(vocab_file=vocabulary, options_file=options, weight_file=str(weights), max_batch_size=2, limit=50)
    assert (model.n_layers, model.vector_size) == (by_folder.n_layers, by_folder.vector_size)
    ids = model.batcher.batch_sentences(TEXTS)
    assert ids.shape == (5, 11, 50) and ids.tolist() == by_folder.batcher.batch_sentences(TEXTS).tolist()
    assert ids[:, 1:-1][1, 0].tolist() == batch_to_ids([["One"]])[0, 0].tolist()
    arguments = {"warmup": True, "layers": "average", "session": session}
    np.testing.assert_array_equal(model.get_elmo_vectors(TEXTS, **arguments),
                                  by_folder.get_elmo_vectors(TEXTS, **arguments))
    assert (model.vocab is not None) == has_vocabulary


@pytest.mark.parametrize("arguments, words", [
    ({}, "directory: expected a path or URL, got None"), ({"options_file": "o"}, "weight_file: expected a path"),
    ({"directory": "x", "weight_file": "w"}, "model: expected either model or options_file and weight_file"),
    ({"options_file": 3, "weight_file": 3}, "options_file: expected a path or URL, got 3")])
def test_load_takes_a_directory_or_files(arguments, words):
    with pytest.raises(ValueError, match=words):
        ElmoModel().load(**arguments)


def test_threads_share_a_model(full):
    model = load(full, full=True)
    expected = model.get_elmo_vectors(TEXTS), model.get_elmo_substitutes(["the cat sat"])
    with ThreadPoolExecutor(4) as pool:
        calls = [(pool.submit(model.get_elmo_vectors, TEXTS), pool.submit(model.get_elmo_substitutes, ["the cat sat"]))
                 for _ in range(8)]
    for vectors, substitutes in calls:
        np.testing.assert_array_equal(vectors.result(), expected[0])
        assert substitutes.result() == expected[1]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).get_elmo_vectors(TEXTS), expected[0])


@pytest.mark.parametrize("state", ["zero", "warm"])
def test_sentences_that_do_not_depend_on_others(folder, state):
    arrays = ElmoEmbedder(*paths(folder), state=state).embed_batch(TEXTS)
    model = load(folder, state=state)
    for arguments in ({}, {"session": object()}, {"warmup": False}):
        check(model.get_elmo_vectors(TEXTS, layers="all", **arguments),
              model.get_elmo_vector_average(TEXTS, layers="all", **arguments), "all", TEXTS, arrays)


def test_sizes_no_sentences_and_a_zip(full, tmp_path):
    for model, count in ((load(full, 7), 0), (load(shutil.make_archive(tmp_path / "193", "zip", full), 7), 5)):
        assert (model.n_layers, model.vector_size, model.batch_size, model.vocab.size) == (3, 8, 7, 8)
        assert model.get_elmo_vectors(TEXTS[:count]).shape == (count, 9 if count else 0, 8)
        assert not hasattr(model, "warmup")


def test_an_archive_without_a_vocabulary(folder, tmp_path):
    """Vectors need no vocabulary; substitutes do."""
    archive = shutil.make_archive(tmp_path / "170", "zip", folder)
    model = load(archive)
    assert model.vocab is None
    np.testing.assert_array_equal(model.get_elmo_vectors(TEXTS), load(folder).get_elmo_vectors(TEXTS))
    with pytest.raises((FileNotFoundError, ValueError), match="^full: "):
        load(archive, full=True)


def test_model_hdf5_comes_before_other_weights_and_else_the_first(folder, tmp_path):
    other_model = write_model(tmp_path / "other", tiny(lstm__dim=12), seed=1)
    (folder / "weights.hdf5").rename(folder / "b.hdf5")
    (other_model / "weights.hdf5").rename(folder / "model.hdf5")
    (folder / "vocab.txt.gz").write_bytes(gzip.compress(b"the\n"))
    second = load(folder).get_elmo_vectors(TEXTS)
    (folder / "model.hdf5").rename(folder / "a.hdf5")
    model = load(folder)
    np.testing.assert_array_equal(model.get_elmo_vectors(TEXTS), second)
    assert model.vocab.size == 1
    (folder / "a.hdf5").unlink()
    assert abs(load(folder).get_elmo_vectors(TEXTS) - second).max() > 1e-3


@pytest.mark.parametrize("topn, nodelimiters", [(3, True), (8, False), (1000, True)])
def test_substitutes_of_each_direction(full, topn, nodelimiters):
    model = load(full, full=True, state="zero")
    tokens = "the cat sat unseen".split()
    empty, substitutes = model.get_elmo_substitutes(["", " ".join(tokens)], topn=topn, nodelimiters=nodelimiters)
    assert empty == [] and [entry["word"] for entry in substitutes] == tokens
    layers, _ = BiLm.from_files(*paths(full), state="zero").embed_tokens([tokens])
    states = layers[-1].detach().double().numpy()
    with h5py.File(full / "softmax.hdf5") as file:
        w, b = file["softmax/W"][()], file["softmax/b"][()]
    for at, token in enumerate(substitutes):
        assert set(token) == {"word", "forward", "backward"}
        for way, state in (("forward", states[at, :4]), ("backward", states[at + 2, 4:])):
            scores = w @ state + b
            ids = sorted(range(2 if nodelimiters else 0, 8), key=lambda word: -scores[word])[:topn]
            assert token[way]["candidates"] == ids
            assert token[way]["candidate_words"] == [model.vocab.id_to_word(word) for word in ids]
            np.testing.assert_allclose(token[way]["logp"], scores[ids], atol=1e-4)


def test_substitutes_of_every_sentence_begin_from_zeros(full):
    model, zero = load(full, full=True), load(full, full=True, state="zero")
    sentences = ["the cat sat", "on the mat", "the cat sat"]
    model.get_elmo_vectors(TEXTS)
    substitutes = model.get_elmo_substitutes(sentences)
    assert substitutes[0] == substitutes[2] == zero.get_elmo_substitutes(sentences[:1])[0]
    assert set(substitutes[0][0]["forward"]) == {"candidates", "candidate_words", "logp"}


@pytest.mark.parametrize("call, error, words", [
    (lambda full: load(full).get_elmo_vectors(TEXTS, layers="last"), ValueError, "layers: expected"),
    (lambda full: load(full).get_elmo_vectors(["a string"]), ValueError, "texts"),
    (lambda full: load("x", max_batch_size=0), ValueError, "max_batch_size: expected"),
    (lambda full: ElmoModel().get_elmo_vectors(TEXTS), RuntimeError, "ElmoModel: expected load"),
    (lambda full: load(full).get_elmo_substitutes(["the cat"]), RuntimeError, ".*full=True"),
    (lambda full: load(full, full=True).get_elmo_substitutes("the cat"), ValueError, "data: expected"),
    (lambda full: (full / "softmax.hdf5").unlink() or load(full, full=True), FileNotFoundError, "full: .*import-tf"),
    (lambda full: (full / "options.json").unlink() or (full / "a.hdf5").touch() or load(full), ValueError,
     "model .*: expected a file options.json, found none"),
    (lambda full: load(write_manylangs(full / "136")), ValueError,
     "model .*: expected options.json .*, found a model of ELMoForManyLangs, which .*compat.elmoformanylangs"),
])
def test_refuses(full, call, error, words):
    with pytest.raises(error, match=f"^{words}"):
        call(full)
