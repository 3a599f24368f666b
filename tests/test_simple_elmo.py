import gzip
import shutil
import zipfile

import numpy as np
import pytest
from files import paths, tiny, write_model

from elmo_fast import ElmoEmbedder
from elmo_fast.compat.simple_elmo import ElmoModel

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
    assert abs(carried.get_elmo_vectors(TEXTS, warmup=False) - carried.get_elmo_vectors(TEXTS, warmup=False)).max() > 1e-4
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
