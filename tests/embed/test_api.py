import copy
import json
import pickle
from importlib.util import find_spec

import numpy as np
import pytest

import elmo_fast
from elmo_fast import BiLm, ContextIndex, ElmoEmbedder, FastaRecord, LoadedElmo, random_weights, write_weights
from elmo_fast.embed import api
from elmo_fast.testing import SAME_MODEL
from elmo_fast.text.readers import Text
from tests.support.engines import EXACT
from tests.support.files import names, paths, read_hdf5, tiny, write_model

SENTENCES = ["The cat sat on the mat .", ["naïve", "café", "with space"], "One", FastaRecord("sp|P1 x", "MKTAY"),
             "a b c d"]
TOKENS = ["The cat sat on the mat .".split(), ["naïve", "café", "with space"], ["One"], list("MKTAY"), list("abcd")]


@pytest.fixture
def directory(tmp_path):
    return write_model(tmp_path / "model", tiny(lstm__dim=12, lstm__n_layers=3))


@pytest.fixture
def model(directory):
    return elmo_fast.load(directory)


def alone(directory, tokens, state):
    """Layers [4, T, 8] of one text, run by itself in a model of its own."""
    layers, _ = BiLm.from_files(*paths(directory), state=state).embed_tokens([tokens])
    return np.stack([each[1:-1].detach().numpy() for each in layers])


@pytest.mark.parametrize("state, batch_size", [("warm", 1), ("warm", 64), ("zero", 2)])
def test_texts_of_every_kind_have_the_vectors_of_single_texts(directory, model, state, batch_size):
    assert model.embed([]) == [] and model.embed([[]])[0].shape == (4, 0, 8)
    vectors = model.embed(SENTENCES, state=state, batch_size=batch_size)
    for values, tokens in zip(vectors, TOKENS, strict=True):
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, alone(directory, tokens, state), rtol=0, atol=SAME_MODEL)


def test_states_of_calls(directory, model):
    """`warm` is the default, and `carry` continues from call to call."""
    np.testing.assert_array_equal(model.embed(SENTENCES)[0], model.embed(SENTENCES, state="warm")[0])
    with pytest.raises(ValueError, match="layers: expected one of"):
        model.embed(SENTENCES, pool="mean", layers="some")
    first, second = (model.embed([TOKENS[0]], state="carry")[0] for _ in range(2))
    np.testing.assert_allclose(first, alone(directory, TOKENS[0], "zero"), rtol=0, atol=SAME_MODEL)
    assert abs(first - second).max() > 1e-3


def test_a_loaded_model_does_not_change(model):
    expected = model.embed(SENTENCES)
    model.bilm.state, model.bilm.warm_text = "zero", [["a"]]
    for parameter in model.bilm.parameters():
        parameter.data.mul_(0.5)
    for vectors, before in zip(model.embed(SENTENCES), expected, strict=True):
        np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize("precision", ["highest", "low"])
def test_copies_and_pickles_continue_the_states(directory, precision):
    elmo = elmo_fast.load(directory, precision=precision)
    elmo.embed(SENTENCES[:1], state="carry")
    twins = copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))
    expected = elmo.embed(SENTENCES, state="carry")
    for twin in twins:
        assert repr(twin) == repr(elmo)
        for vectors, truth in zip(twin.embed(SENTENCES, state="carry"), expected, strict=True):
            np.testing.assert_allclose(vectors, truth, rtol=0, atol=EXACT)


def test_files_that_changed_are_refused(directory, model):
    write_weights(directory / "weights.hdf5", random_weights(BiLm.from_model(directory).options, seed=7))
    for call in (lambda: model.bilm, lambda: pickle.dumps(model)):
        with pytest.raises(RuntimeError, match="weights: expected those that the model was made of in .*model"):
            call()


def test_the_text_before_every_text_in_state_warm(directory, model):
    text = [["Hun", "gikk", "."], ["Det", "regnet"]]
    expected = LoadedElmo(BiLm.from_model(directory, state="warm", warm_text=text)).embed(SENTENCES)
    for vectors, truth, before in zip(elmo_fast.load(directory, warm_text=iter(text)).embed(SENTENCES), expected,
                                      model.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(vectors, truth, rtol=0, atol=SAME_MODEL)
        assert not np.allclose(vectors[1:], before[1:], atol=1e-3)
    with pytest.raises(ValueError, match="warm_text: expected a list of tokenized sentences, got str"):
        elmo_fast.load(directory, warm_text="Hun gikk .")


POOLS = {None: lambda values: values, "mean": lambda values: values.sum(-2) / values.shape[-2],
         "max": lambda values: values.max(-2),
         "first_last": lambda values: np.concatenate([values[..., -1, :4], values[..., 0, 4:]], -1)}


@pytest.mark.parametrize("layers, factors", [
    ("all", np.eye(4)), ("top", [0, 0, 0, 1]), ("average", [0.25] * 4), ([0.5, 0, -1, 2], [0.5, 0, -1, 2]),
    (np.arange(4), [0, 1, 2, 3])])
@pytest.mark.parametrize("pool", POOLS)
def test_layers_and_pools(model, layers, factors, pool):
    for values, layer_values in zip(model.embed(SENTENCES, layers, pool=pool), model.embed(SENTENCES), strict=True):
        assert values.dtype == np.float32
        expected = POOLS[pool](np.tensordot(factors, layer_values.astype(np.float64), axes=1))
        np.testing.assert_allclose(values, expected, rtol=0, atol=SAME_MODEL)
        assert values.shape == expected.shape


def test_one_vector_a_sentence(directory, model):
    vectors = model.encode(SENTENCES, batch_size=2)
    expected = np.stack([alone(directory, tokens, "warm").mean((0, 1)) for tokens in TOKENS])
    assert vectors.shape == (5, 8) and vectors.dtype == np.float32 and model.encode([]).shape == (0, 8)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=SAME_MODEL)
    np.testing.assert_allclose(model.encode(SENTENCES[0]), vectors[0], rtol=0, atol=EXACT)
    np.testing.assert_array_equal(model.encode(SENTENCES, "zero"), model.embed(SENTENCES, "average", "zero", "mean"))


def test_raw_strings_are_tokenized(model, tmp_path):
    """Strings alone are split, and a file has the tokens beside the vectors."""
    raw, tokens = "They don't (yet) play, Mr. Cat.", "They do n't ( yet ) play , Mr. Cat .".split()
    expected, split = model.embed([tokens, raw.split()])
    texts = [raw, raw.split(), elmo_fast.text.readers.Text("a", raw, raw.split())]
    for vectors in (model.embed(texts), list(model.stream(texts))):
        assert all(map(np.array_equal, vectors, [expected, split, split]))
    np.testing.assert_allclose(model.embed([raw], tokenizer="whitespace")[0], split, rtol=0, atol=EXACT)
    assert model.embed([raw], tokenizer=list)[0].shape[1] == len(raw)
    assert model.embed([FastaRecord("a", "A(B).")])[0].shape[1] == 5
    np.testing.assert_array_equal(model.encode(raw), model.encode([tokens])[0])
    assert model.similarity(raw, tokens) == pytest.approx(1, abs=1e-6)
    assert model.similarity(raw, tokens, tokenizer="whitespace") < 0.9999
    if find_spec("pyarrow"):
        model.save_vectors(tmp_path / "v.parquet", [raw], layers="top")
        with elmo_fast.open_embeddings(tmp_path / "v.parquet") as embeddings:
            np.testing.assert_allclose(embeddings[0], expected[-1], rtol=0, atol=EXACT)
            assert list(embeddings.tokens(0)) == tokens
    with pytest.raises(ValueError, match="^tokenizer: expected auto, whitespace, penn, simple, a function"):
        model.embed([raw], tokenizer="spacy")


FILLED = {"a list": lambda number, buffer: buffer, "a text": lambda number, buffer: Text(str(number), "", buffer),
          "a tokenizer": lambda number, buffer: " ".join(buffer)}


@pytest.mark.parametrize("kind", FILLED)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_list_that_the_caller_reuses(directory, tmp_path, backend, kind):
    """Texts are read ahead, so the list holds a later text when the vectors are computed."""
    model, buffer, words = elmo_fast.load(directory, backend=backend), [], []

    def fill(text):
        words[:] = text.split()
        return words

    def texts():
        for number, tokens in enumerate(TOKENS):
            buffer[:] = tokens
            yield FILLED[kind](number, buffer)

    tokens = [" ".join(each).split() for each in TOKENS] if kind == "a tokenizer" else TOKENS
    expected = model.embed(tokens, batch_size=2)
    model.save_vectors(tmp_path / "vectors.h5", texts(), batch_size=2, tokenizer=fill)
    results = [model.embed(texts(), batch_size=2, tokenizer=fill), model.stream(texts(), batch_size=2, tokenizer=fill),
               list(elmo_fast.open_embeddings(tmp_path / "vectors.h5"))]
    if kind == "a list":
        results += [model.vectors(texts(), 2, "warm"), [array[:] for array in ElmoEmbedder.from_bilm(
            BiLm.from_files(*paths(directory), state="warm", backend=backend)).embed_sentences(texts(), 2)]]
    for vectors in results:
        for actual, truth in zip(vectors, expected, strict=True):
            np.testing.assert_allclose(actual, truth, rtol=0, atol=SAME_MODEL if backend == "reference" else EXACT)


def test_vectors_without_context_and_similarity(directory, model):
    vectors = model.encode_words(TOKENS[0])
    assert vectors.shape == (7, 4) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, alone(directory, TOKENS[0], "zero")[0, :, :4], rtol=0, atol=SAME_MODEL)
    first, second = (alone(directory, tokens, "warm").mean((0, 1)) for tokens in TOKENS[:2])
    expected = (first @ second) / np.sqrt((first @ first) * (second @ second))
    assert model.similarity(SENTENCES[0], SENTENCES[1]) == pytest.approx(expected, abs=1e-5)
    assert model.similarity("a b", ["a", "b"]) == pytest.approx(1, abs=1e-6)


def test_saved_vectors_are_the_embedded_ones(model, tmp_path):
    expected, keys = model.embed(SENTENCES), ["0", "1", "2", "sp|P1", "4"]
    model.save_vectors(tmp_path / "v.h5", iter(SENTENCES))
    model.save_vectors(tmp_path / "v.npz", SENTENCES)
    model.save_vectors(tmp_path / "v.npy", SENTENCES, layers="top", pool="mean")
    for arrays in (read_hdf5(tmp_path / "v.h5"), np.load(tmp_path / "v.npz")):
        assert sorted(arrays) == sorted(keys)
        for key, values in zip(keys, expected):
            np.testing.assert_array_equal(arrays[key], values)
    assert arrays.files == keys
    assert json.loads((tmp_path / "v.json").read_text()) == keys
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), model.embed(SENTENCES, layers="top", pool="mean"))


def test_properties_and_repr_of_a_model(directory, model):
    assert (model.num_layers, model.dim) == (4, 8) == (len(model.embed(["a"])[0]), model.embed(["a"])[0].shape[-1])
    assert repr(model) == (f"LoadedElmo(model={str(directory)!r}, num_layers=4, dim=8, device='cpu', "
                           "precision='highest')")
    assert repr(LoadedElmo(model.bilm)).startswith("LoadedElmo(num_layers=4, ")
    assert dir(elmo_fast) == sorted([*elmo_fast.__all__, "__version__"])


def test_a_layer_by_its_number(model, tmp_path):
    expected = model.embed(SENTENCES)
    for layer in (0, np.int64(2)):
        for values, layers in zip(model.embed(SENTENCES, layer), expected, strict=True):
            np.testing.assert_array_equal(values, layers[int(layer)])
    pooled = model.embed(SENTENCES, layers=3, pool="max")
    np.testing.assert_array_equal(pooled, [layers[3].max(0) for layers in expected])
    ContextIndex.build(model, SENTENCES, layers=0).save(tmp_path / "index.h5")
    index = ContextIndex.load(tmp_path / "index.h5")
    assert index.layers == 0
    first = expected[0][0] / np.linalg.norm(expected[0][0], axis=-1, keepdims=True)
    np.testing.assert_allclose(index.vectors[: len(first)], first, rtol=0, atol=SAME_MODEL)


TWICE = [FastaRecord("P1 a", "MK"), FastaRecord("P1 b", "QQ")]


@pytest.mark.parametrize("call, message", [
    (lambda m, _: m.embed("one string"), ".* put it into a list"),
    (lambda m, _: m.embed(FastaRecord("a", "MK")), ".* put it into a list"),
    (lambda m, _: m.embed(Text("0", "a b", ["a", "b"])), ".* put it into a list"),
    (lambda m, _: m.embed({"id": "a text"}), "sentences: expected a list of tokenized sentences, got dict"),
    (lambda m, folder: m.save_vectors(folder / "v.h5", SENTENCES, targets="cat"), "targets: expected words, got 'cat'"),
    (lambda m, _: m.embed(SENTENCES, layers=[1, 2]), "layers: expected 4 numbers"),
    (lambda m, _: m.embed(["a", ""], pool="mean"), r"sentences\[1\]: expected at least one token"),
    (lambda m, _: m.encode_words("token"), "words"),
    (lambda m, folder: m.save_vectors(folder / "v.txt", SENTENCES), "output: expected a file that ends in .h5, "),
    (lambda m, folder: m.save_vectors(folder / "v.npy", SENTENCES), "output: expected .h5 or .npz for arrays of"),
    (lambda m, folder: m.save_vectors(folder / "no" / "v.h5", SENTENCES), "output: expected an existing directory"),
    (lambda m, folder: m.save_vectors(folder / "v.h5", SENTENCES, pool="sum"), "pool: expected None or one of"),
    (lambda m, folder: m.save_vectors(folder / "v.h5", TWICE), "output: .* got 'P1'"),
])
def test_refuses_and_leaves_nothing(model, tmp_path, call, message):
    before = names(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=f"^{message}"):
        call(model, tmp_path)
    assert names(tmp_path) == before


def test_proteins_that_start_after_english_are_reported_once(directory, model, caplog):
    api._warn_once.cache_clear()
    records, message = [FastaRecord("P1", "MKV"), FastaRecord("P2", "MK")], "state: a record of FASTA starts after"
    model.embed(records, state="zero")
    model.embed([list(record.sequence) for record in records])
    assert message not in caplog.text
    for _ in range(2):
        model.embed(records)
        list(model.stream(records))
    assert caplog.text.count(message) == 1
    api._warn_once.cache_clear()
    elmo_fast.load(directory, warm_text=[["M", "K"]]).embed(records)
    assert caplog.text.count(message) == 1
