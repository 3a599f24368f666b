"""The component `elmo` in spaCy itself: vectors, batches, processes, and pipelines that are saved and loaded."""

import multiprocessing
import shutil

import numpy as np
import pytest

import elmo_fast
from elmo_fast.testing import SAME_MODEL
from tests.support.docs import run_documented_code
from tests.support.files import names, write_model
from tests.support.manylangs import write_manylangs

pytestmark = pytest.mark.long
spacy = pytest.importorskip("spacy", reason="spaCy is not installed: make test-integrations")

import elmo_fast.integrations.spacy  # noqa: E402  registers the component

TEXTS = ["They play outside. The play was long, and  then\nit was over.", "", "One", "naïve café. 東京 is far."] * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("model")))


def pipeline(model, sentences=True, **config):
    nlp = spacy.blank("en")
    if sentences:
        nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"model": model, **config})
    return nlp


def tensors(docs):
    return [doc.tensor for doc in docs]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for array, truth in zip(actual, expected):
        np.testing.assert_array_equal(array, truth)


@pytest.mark.parametrize("sentences", [True, False])
@pytest.mark.parametrize("layers, state", [("average", "warm"), ("top", "zero"), ("all", "warm"),
                                           ([0.5, 0, 2], "zero")])
def test_tensors_are_those_of_embed(model, sentences, layers, state):
    elmo = elmo_fast.load(model)
    docs = list(pipeline(model, sentences, layers=layers, state=state, batch_size=2).pipe(TEXTS, batch_size=5))
    width = 24 if layers == "all" else 8
    for doc, text in zip(docs, TEXTS):
        parts = list(doc.sents) if sentences and len(doc) else [doc]
        assert len(parts) == 1 or sentences
        arrays = elmo.embed([[token.text for token in part] for part in parts], layers, state)
        if layers == "all":
            arrays = [np.concatenate(list(array), axis=1) for array in arrays]
        assert doc.text == text and doc.tensor.shape == (len(doc), width) and doc.tensor.dtype == np.float32
        np.testing.assert_array_equal(doc.tensor, np.concatenate(arrays))


def test_vectors_and_similarities(model):
    nlp = pipeline(model)
    nlp.vocab.set_vector("play", np.ones(300, np.float32))  # static vectors are not used
    doc, empty = nlp(TEXTS[0]), nlp("")
    senses = [token for token in doc if token.text == "play"]
    assert [token.i for token in senses] == [1, 5]
    np.testing.assert_array_equal(senses[0].vector, doc.tensor[1])
    np.testing.assert_allclose(doc[2:5].vector, doc.tensor[2:5].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(doc.vector, doc.tensor.mean(axis=0), rtol=1e-6)
    first, second = (doc.tensor[token.i].astype(np.float64) for token in senses)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert cosine < 0.9999
    assert senses[0].similarity(senses[1]) == pytest.approx(cosine, abs=1e-6)
    assert doc[1:2].similarity(doc[5:6]) == pytest.approx(cosine, abs=1e-6) == doc[1:2].similarity(senses[1])
    assert doc.similarity(nlp(TEXTS[0])) == pytest.approx(1) and doc.similarity(empty) == 0
    assert senses[0].has_vector and doc.has_vector and doc[1:2].has_vector and doc.vector_norm > 0
    assert not empty.has_vector and empty.vector.shape == (8,) and not empty.vector.any()
    np.testing.assert_array_equal(doc[4:7].as_doc()[1].vector, doc.tensor[5])


def test_disk_and_bytes_hold_the_weights(model, tmp_path):
    copied = shutil.copytree(model, tmp_path / "copied")
    nlp = pipeline(str(copied), layers="top")
    expected = tensors(nlp.pipe(TEXTS))
    nlp.to_disk(tmp_path / "saved")
    content, config = nlp.to_bytes(), nlp.config
    shutil.rmtree(copied)
    assert names(tmp_path / "saved" / "elmo") == ["options.json", "weights.hdf5"]
    assert_same(tensors(spacy.load(tmp_path / "saved").pipe(TEXTS)), expected)
    assert_same(tensors(spacy.util.load_model_from_config(config).from_bytes(content).pipe(TEXTS)), expected)


@pytest.mark.parametrize("method, name", [("fork", "small"), ("spawn", "small"), ("fork", "bundled")])
def test_two_processes(model, method, name, monkeypatch):
    nlp = pipeline(model if name == "small" else name)  # the bundled model is large enough for PyTorch's own threads
    expected = tensors(nlp.pipe(TEXTS))
    monkeypatch.setattr(multiprocessing, "Process", multiprocessing.get_context(method).Process)
    monkeypatch.setattr(multiprocessing, "Queue", multiprocessing.get_context(method).Queue)
    docs = list(nlp.pipe(TEXTS, n_process=2, batch_size=2))
    assert_same(tensors(docs), expected)
    np.testing.assert_array_equal(docs[0][3].vector, expected[0][3])


@pytest.mark.parametrize("config, message", [
    ({"state": "carry"}, "state: expected one of zero, warm, got 'carry'"), ({"layers": "first"}, "layers: expected"),
    ({"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
    ({"precision": "lowest"}, "precision: expected one of"),
    ({"model": "/nowhere"}, "model: expected one of bundled")])
def test_bad_configurations_are_named(model, config, message):
    with pytest.raises((ValueError, FileNotFoundError), match=f"^{message}"):
        pipeline(**{"model": model, **config})("text")


def test_documented_code():
    names, readme = run_documented_code("spaCy")
    doc = names["doc"]
    assert (doc[1].text, doc[6].text, len(list(doc.sents))) == ("play", "play", 2)
    assert 0 < doc[1].similarity(doc[6]) < 1 and doc.tensor.shape == (len(doc), 384)
    np.testing.assert_array_equal(readme["nlp"]("a play").tensor, elmo_fast.load().embed(["a play"], "average")[0])


def test_a_model_of_elmoformanylangs_runs_and_is_not_saved(tmp_path):
    model = str(write_manylangs(tmp_path / "model"))
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": model})
    (expected,) = elmo_fast.load(model).embed(["the cat"], "average")
    np.testing.assert_allclose(nlp("the cat").tensor, expected, rtol=0, atol=SAME_MODEL)
    with pytest.raises(elmo_fast.ConfigurationError, match="ELMoForManyLangs, .* copy its directory instead"):
        nlp.to_bytes()
