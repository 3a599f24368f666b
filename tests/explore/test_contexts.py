import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError, FastaRecord
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.explore.comparison import compare
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.explore.nearest import find_contexts, open_index
from elmo_fast.text.readers import Text
from elmo_fast.vectors.spec import OutputSpec
from tests.support.files import names, read_hdf5, tiny
from tests.support.models import bilm
from tests.support.vectors import items_of, write

TEXTS = ["the play began", "Play the game , play it", "a dull evening", "it rained \u732b and a PLAY opened", ""]


@pytest.fixture(scope="module")
def elmo():
    return LoadedElmo(bilm(elmo_fast.Options.from_dict(tiny()), state="warm"))


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a / np.linalg.norm(a, axis=-1, keepdims=True)) @ (b / np.linalg.norm(b, axis=-1, keepdims=True)).T


def test_maps_of_layers_and_of_a_mixture(elmo):
    maps = compare(elmo, "a naïve 猫 sat", ["one", "two words"])
    a, b = elmo.embed([["a", "naïve", "猫", "sat"], ["one", "two words"]])
    assert (maps.first_tokens, maps.second_tokens) == (["a", "naïve", "猫", "sat"], ["one", "two words"])
    assert maps.layers().dtype == np.float32 and maps.layers().shape == (3, 4, 2)
    np.testing.assert_allclose(maps.layers(), [cosine(x, y) for x, y in zip(a, b)], atol=1e-7)
    weights = [0.2, -0.5, 1.3]
    mixed = cosine(np.tensordot(weights, a, axes=1), np.tensordot(weights, b, axes=1))
    np.testing.assert_allclose(maps.mixed(weights), mixed, atol=1e-6)
    for layer in range(3):
        np.testing.assert_allclose(maps.mixed(np.eye(3)[layer]), maps.layers()[layer], atol=1e-7)


def test_proteins_and_texts_of_readers(elmo):
    protein, text = FastaRecord("P1 a protein", "MKVM"), Text("7", "a text", ["a", "text"])
    maps = compare(elmo, protein, text)
    assert (maps.first_tokens, maps.second_tokens) == (list("MKVM"), ["a", "text"])
    index = ContextIndex.build(elmo, [protein, text])
    assert index.texts == [list("MKVM"), ["a", "text"]] and index.occurrences("m").tolist() == [0, 3]


def check_nearest(contexts, vectors, query, tolerance, without=None):
    """Neighbours have the largest cosines of their own vectors; ties within the tolerance come in any order."""
    scores = cosine(vectors, query[None])[:, 0]
    numbers, similarities = [near.number for near in contexts], [near.similarity for near in contexts]
    assert len(set(numbers)) == len(numbers) and without not in numbers
    np.testing.assert_allclose(similarities, scores[numbers], atol=tolerance)
    other_scores = np.delete(scores, [] if without is None else [without])
    np.testing.assert_allclose(similarities, np.sort(other_scores)[::-1][:len(contexts)], atol=tolerance)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float16", 2e-3)])
@pytest.mark.parametrize("layers", ["average", "top", (0.0, 1.0, 0.0)])
def test_nearest_of_every_token(elmo, layers, dtype, tolerance):
    index = ContextIndex.build(elmo, TEXTS, layers=layers, dtype=dtype)
    vectors = np.concatenate(elmo.embed(TEXTS[:4], layers))
    assert len(index) == len(vectors) == 19 and index.vectors.dtype == dtype
    assert index.places.tolist() == [[t, p] for t, text in enumerate(TEXTS) for p in range(len(text.split()))]
    for number in (0, 7, 18):
        contexts = index.nearest(number, 5)
        check_nearest(contexts, vectors, vectors[number], tolerance, without=number)
        for near in contexts:
            assert index.places[near.number].tolist() == [near.text, near.position]
    far = np.linspace(-3, 5, 8, dtype=np.float32)
    check_nearest(index.nearest(far, 99), index.vectors, far, 1e-6)
    assert len(index.nearest(far, 99)) == 19 and len(index.nearest(2, 99)) == 18


def test_only_chosen_words_and_their_lines(elmo):
    index = ContextIndex.build(elmo, ["none here", *TEXTS], words=["Play"])
    assert [index.texts[text][at] for text, at in index.places.tolist()] == ["play", "Play", "play", "PLAY"]
    assert index.lines.tolist() == [1, 2, 4] and index.occurrences("PLAY").tolist() == [0, 1, 2, 3]
    assert index.occurrences("game").tolist() == []
    full_index = ContextIndex.build(elmo, TEXTS)
    np.testing.assert_array_equal(index.vectors, full_index.vectors[full_index.occurrences("play")])
    among = full_index.nearest(full_index.occurrences("play")[1], among=full_index.occurrences("play"))
    assert [near.similarity for near in among] == [near.similarity for near in index.nearest(1)]


@pytest.mark.parametrize("center", [False, True])
def test_nearest_of_many(center):
    """More vectors than the search computes at once."""
    vectors = np.random.default_rng(0).normal(1, 1, (20_000, 8)).astype(np.float32)
    index = ContextIndex([["a"] * len(vectors)], np.array([[0, at] for at in range(len(vectors))]), vectors)
    if center:
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors - vectors.mean(axis=0)
    check_nearest(index.nearest(17_000, 30, center=center), vectors, vectors[17_000], 1e-5, without=17_000)


@pytest.mark.parametrize("layers", ["average", (0.0, 1.0, 0.0)])
def test_saved_and_loaded(elmo, tmp_path, layers):
    texts = [*TEXTS, ["two words", "\ud800", "\n"]]
    index = ContextIndex.build(elmo, texts, dtype="float16", layers=layers, state="zero")
    index.save(tmp_path / "index.h5")
    assert names(tmp_path) == ["index.h5"]
    copy = ContextIndex.load(tmp_path / "index.h5")
    assert copy.texts == index.texts and (copy.layers, copy.state) == (layers, "zero")
    assert (copy.model, copy.precision) == (elmo.bilm.fingerprint(), "highest") == (index.model, index.precision)
    np.testing.assert_array_equal(copy.vectors, index.vectors)
    np.testing.assert_array_equal(copy.places, index.places)
    assert copy.nearest(3) == index.nearest(3) and copy.lines.tolist() == index.lines.tolist()
    copy.save(tmp_path / "again.h5")
    assert read_hdf5(tmp_path / "again.h5").keys() == read_hdf5(tmp_path / "index.h5").keys()


def test_an_empty_index(elmo, tmp_path):
    ContextIndex.build(elmo, TEXTS, words=["none"]).save(tmp_path / "index.h5")
    index = ContextIndex.load(tmp_path / "index.h5")
    assert len(index) == 0 and index.nearest(np.ones(8)) == [] and index.nearest(np.ones(8), center=True) == []


@pytest.mark.parametrize("layers", ["all", "top", (0.0, 1.0, 0.0)])
def test_an_index_of_stored_embeddings(elmo, tmp_path, layers):
    form = OutputSpec(layers=layers)
    fingerprint = {"model": elmo.bilm.fingerprint(), "state": "warm", "effective precision": "low"}
    path = write("allennlp", tmp_path / "vectors.h5", form, items_of(elmo, form, TEXTS), fingerprint=fingerprint)
    expected = ContextIndex.build(elmo, TEXTS, layers="average" if layers == "all" else layers)
    for words in (None, ["play", "it"]):
        index = open_index(path, words=words)
        same = expected if words is None else ContextIndex.build(elmo, TEXTS, layers=expected.layers, words=words)
        np.testing.assert_allclose(index.vectors, same.vectors, atol=1e-6)
        assert index.places.tolist() == same.places.tolist() and index.texts == same.texts
        assert index.lines.tolist() == same.lines.tolist() and index.check(elmo) is index
        assert (list(index.layers), index.state) == (list(expected.layers), "warm")
        assert index.precision == "low"


def test_inputs_that_give_no_index(elmo, tmp_path):
    (tmp_path / "text.txt").write_text("a text")
    assert open_index(tmp_path / "text.txt") is None and open_index(tmp_path / "absent") is None
    form = OutputSpec(layers="top", pool="mean")
    write("allennlp", tmp_path / "pooled.h5", form, items_of(elmo, form, TEXTS[:3]))
    with pytest.raises(ConfigurationError, match="expected vectors of tokens, got pooled ones"):
        open_index(tmp_path / "pooled.h5")
    elmo.save_vectors(tmp_path / "vectors.npz", TEXTS)
    with pytest.raises(ConfigurationError, match="expected a file that stores tokens"):
        open_index(tmp_path / "vectors.npz")
    elmo.save_vectors(tmp_path / "vectors.h5", TEXTS)
    with pytest.raises(ConfigurationError, match="expected a file that ContextIndex.save wrote"):
        ContextIndex.load(tmp_path / "vectors.h5")
    other_model = LoadedElmo(bilm(elmo_fast.Options.from_dict(tiny()), seed=1, state="warm"))
    with pytest.raises(ConfigurationError, match="index: expected vectors of this model .8 values."):
        ContextIndex.build(elmo, TEXTS).check(other_model)


@pytest.mark.parametrize("call, message", [
    (lambda elmo: compare(elmo, "", "a"), "first: expected a text with at least one token"),
    (lambda elmo: compare(elmo, 3, "a"), "first: expected a string or a list of tokens, got int"),
    (lambda elmo: compare(elmo, "a", "b", state="carry"), "state: expected one of zero, warm, got 'carry'"),
    (lambda elmo: compare(elmo, "a", "b").mixed([1, 2, np.nan]), "weights: expected finite numbers, got"),
    (lambda elmo: ContextIndex.build(elmo, TEXTS, words="play"), "words: expected a list of words, got 'play'"),
    (lambda elmo: ContextIndex.build(elmo, TEXTS, layers="all"), "layers: expected a layer or a mixture"),
    (lambda elmo: ContextIndex.build(elmo, TEXTS, dtype="int8"), "dtype: expected one of float32, float16"),
    (lambda elmo: ContextIndex.build(elmo, FastaRecord("a", "MK")),
     "texts: expected a list of texts, got one FastaRecord"),
    (lambda elmo: ContextIndex.build(elmo, TEXTS).nearest(10**6), "query: expected numbers of occurrences"),
    (lambda elmo: ContextIndex.build(elmo, TEXTS).nearest(0, among=[0, 10**6]), "among: expected numbers of occurr"),
    (lambda elmo: ContextIndex.build(elmo, TEXTS).nearest(np.ones(4)), "query: expected a vector of 8 values"),
    (lambda elmo: find_contexts(elmo, ContextIndex.build(elmo, TEXTS), "play", queries=0),
     "queries: expected an integer of at least 1, got 0"),
    (lambda _: ContextIndex([["a"]], np.zeros((2, 2)), np.zeros((1, 8))), r".*expected \[n, dim\] and \[n, 2\]"),
])
def test_refuses(elmo, call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call(elmo)
