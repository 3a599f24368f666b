import gzip
import shutil
import zipfile

import h5py
import numpy as np
import pytest

from elmo_fast import BiLm, ElmoEmbedder
from elmo_fast.compat.simple_elmo import ElmoModel
from tests.support.files import paths, tiny, write_model
from tests.support.softmax import write_softmax_model

TEXTS = ["The cat sat on the mat".split(), ["One"], "A much longer sentence than all of the others".split(),
         [], "naïve café".split()]


@pytest.fixture
def directory(tmp_path):
    return write_model(tmp_path / "model", tiny(lstm__dim=12))


def loaded(directory, max_batch_size=2, **arguments):
    model = ElmoModel(**arguments)
    model.load(directory, max_batch_size=max_batch_size)
    return model


def by_hand(directory, warmup, state="carry"):
    """Layers [layers, T, 2 P] of every text, in batches of 2, each run twice when warmed up."""
    embedder, found = ElmoEmbedder(*paths(directory), state=state), []
    for start in range(0, len(TEXTS), 2):
        for _ in range(2 if warmup else 1):
            arrays = embedder.embed_batch(TEXTS[start : start + 2])
        found += arrays
    return found


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("layers", ["average", "top", "all"])
def test_vectors_are_padded_with_zeros(directory, warmup, layers):
    found = loaded(directory).get_elmo_vectors(TEXTS, warmup=warmup, layers=layers)
    assert found.shape == ((5, 3, 9, 8) if layers == "all" else (5, 9, 8)) and found.dtype == np.float32
    for row, text, values in zip(found, TEXTS, by_hand(directory, warmup)):
        wanted = {"all": values, "top": values[2], "average": (values[0] + values[1] + values[2]) / 3}[layers]
        np.testing.assert_allclose(row[..., : len(text), :], wanted, rtol=0, atol=1e-6)
        assert not row[..., len(text) :, :].any()


@pytest.mark.parametrize("layers", ["average", "top", "all"])
def test_sentence_vectors_are_the_normed_means_of_their_own_tokens(directory, layers):
    found = loaded(directory).get_elmo_vector_average(TEXTS, layers=layers)
    assert found.shape == ((5, 3, 8) if layers == "all" else (5, 8))
    for row, text, values in zip(found, TEXTS, by_hand(directory, True)):
        if not text:
            assert not row.any()
            continue
        mean = values.mean(1)  # [layers, 2 P]
        wanted = {"all": mean, "top": mean[2], "average": mean.mean(0)}[layers]
        wanted = wanted / np.sqrt((wanted**2).sum(-1, keepdims=True))
        np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-5)


def test_states_are_carried_unless_asked_otherwise(directory):
    carried = loaded(directory)
    first, second = (carried.get_elmo_vectors(TEXTS, warmup=False) for _ in range(2))
    assert abs(first - second).max() > 1e-4
    steady = loaded(directory, state="warm")
    first = steady.get_elmo_vectors(TEXTS)
    np.testing.assert_allclose(steady.get_elmo_vectors(TEXTS[::-1])[::-1], first, rtol=0, atol=1e-6)


def test_sizes(directory):
    model = loaded(directory, max_batch_size=7)
    assert (model.n_layers, model.vector_size, model.batch_size, model.vocab) == (3, 8, 7, None)


def test_a_session_is_taken_and_ignored(directory):
    np.testing.assert_array_equal(loaded(directory).get_elmo_vectors(TEXTS, session=object()),
                                  loaded(directory).get_elmo_vectors(TEXTS))


def test_a_zip_with_a_compressed_vocabulary(directory, tmp_path):
    with gzip.open(directory / "vocab.txt.gz", "wt") as file:
        file.write("<S>\n</S>\n<UNK>\nthe\n")
    (directory / "weights.hdf5").rename(directory / "model.hdf5")
    with zipfile.ZipFile(tmp_path / "193.zip", "w") as archive:
        for path in directory.iterdir():
            archive.write(path, path.name)
    model = loaded(tmp_path / "193.zip")
    assert model.vocab.size == 4 and model.get_elmo_vectors(TEXTS).shape == (5, 9, 8)


def test_model_hdf5_comes_before_other_weights_and_else_the_first(directory):
    other = write_model(directory.parent / "other", tiny(lstm__dim=12), seed=1)
    shutil.move(other / "weights.hdf5", directory / "model.hdf5")
    second = loaded(directory).get_elmo_vectors(TEXTS)
    (directory / "model.hdf5").rename(directory / "a.hdf5")
    (directory / "weights.hdf5").rename(directory / "b.hdf5")
    np.testing.assert_array_equal(loaded(directory).get_elmo_vectors(TEXTS), second)
    (directory / "a.hdf5").unlink()
    assert abs(loaded(directory).get_elmo_vectors(TEXTS) - second).max() > 1e-3


@pytest.mark.parametrize("call, words", [
    (lambda model: model.get_elmo_vectors(TEXTS, layers="last"), "layers: expected"),
    (lambda model: model.get_elmo_vectors("a string"), "texts"),
    (lambda model: model.get_elmo_vectors(["a string"]), "texts"),
    (lambda model: model.load("x", max_batch_size=0), "max_batch_size: expected"),
])
def test_bad_arguments(directory, call, words):
    with pytest.raises(ValueError) as caught:
        call(loaded(directory))
    assert words in str(caught.value)


def test_nothing_works_before_load():
    with pytest.raises(RuntimeError, match="load"):
        ElmoModel().get_elmo_vectors(TEXTS)


def test_no_sentences_give_an_empty_array(directory):
    assert loaded(directory).get_elmo_vectors([]).shape == (0, 0, 8)


@pytest.fixture
def full(directory):
    """A model with a softmax of eight words."""
    return write_softmax_model(directory, tiny(lstm__dim=12), "<S> </S> <UNK> the cat sat on mat".split())


@pytest.mark.parametrize("topn, nodelimiters", [(3, True), (8, False), (1000, True)])
def test_substitutes_of_each_direction(full, topn, nodelimiters):
    model = ElmoModel(state="zero")
    model.load(full, full=True)
    text = "the cat sat unseen"
    (tokens,) = model.get_elmo_substitutes([text], topn=topn, nodelimiters=nodelimiters)
    layers, _ = BiLm.from_files(*paths(full), state="zero").embed_tokens([text.split()])
    forward, backward = (half.detach().numpy().astype(np.float64) for half in layers[-1].chunk(2, dim=1))
    with h5py.File(full / "softmax.hdf5") as file:
        w, b = file["softmax/W"][()], file["softmax/b"][()]
    for at, token in enumerate(tokens):
        assert token["word"] == text.split()[at] and set(token) == {"word", "forward", "backward"}
        for way, state in (("forward", forward[at]), ("backward", backward[at + 2])):
            scores = w @ state + b
            ids = sorted(range(2 if nodelimiters else 0, 8), key=lambda word: -scores[word])[:topn]
            assert token[way]["candidate_ids"] == ids
            assert token[way]["candidate_words"] == [model.vocab.id_to_word(word) for word in ids]
            np.testing.assert_allclose(token[way]["logp"], scores[ids], atol=1e-4)


def test_substitutes_need_the_full_model(directory, full):
    with pytest.raises(RuntimeError, match="full=True"):
        loaded(full).get_elmo_substitutes(["the cat"])
    model = ElmoModel()
    model.load(full, full=True)
    assert model.get_elmo_substitutes(["", "the"])[0] == []
    with pytest.raises(ValueError, match="data: expected"):
        model.get_elmo_substitutes("the cat")
    (full / "softmax.hdf5").unlink()
    with pytest.raises(FileNotFoundError, match="import-tf"):
        model.load(full, full=True)
