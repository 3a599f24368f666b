"""`Embed` in Hugging Face's datasets itself: columns, fingerprints, and several processes."""

import pickle

import numpy as np
import pytest

import elmo_fast
from elmo_fast.integrations.datasets import Embed
from tests.support.docs import run_documented_code
from tests.support.files import write_model

pytestmark = pytest.mark.long
datasets = pytest.importorskip("datasets", reason="datasets is not installed: make test-integrations")

import multiprocess  # noqa: E402
from datasets.fingerprint import Hasher  # noqa: E402

TEXTS = ["A new play opened .", "", "One", "They play outside and then they go home .", "naïve café 東京"] * 3


@pytest.fixture
def texts(tmp_path):
    """A data set on disk: its results are cached."""
    datasets.Dataset.from_dict({"text": TEXTS, "tokens": [text.split() for text in TEXTS]}).save_to_disk(tmp_path)
    return datasets.load_from_disk(tmp_path)


def assert_rows(dataset, expected, column="elmo"):
    rows = dataset.with_format("numpy")[:][column]
    assert len(rows) == len(expected)
    for row, truth in zip(rows, expected):
        row = np.asarray(row, np.float32).reshape(truth.shape)
        np.testing.assert_array_equal(row, truth)


def expected(model, layers="average", state="warm"):
    arrays = elmo_fast.load(model).embed(TEXTS, layers, state)
    return [np.concatenate(list(array), axis=1) for array in arrays] if layers == "all" else arrays


@pytest.mark.parametrize("column, layers, state", [
    ("text", "average", "warm"), ("tokens", "top", "zero"), ("text", "all", "warm"), ("tokens", (0.5, 0, 2), "zero")])
def test_a_column_of_tokens_vectors(model, texts, column, layers, state):
    mapped = texts.map(Embed(column, "vectors", model=model, layers=layers, state=state, batch_size=2), batched=True,
                       batch_size=4)
    assert mapped.column_names == ["text", "tokens", "vectors"]
    assert_rows(mapped, expected(model, layers, state), "vectors")
    assert mapped.features["vectors"] == datasets.List(datasets.List(datasets.Value("float32")))


def test_raw_texts_are_tokenized(model):
    raw = ["It isn't (bad).", "It is n't ( bad ) ."]
    embed = pickle.loads(pickle.dumps(Embed("text", model=model)))
    np.testing.assert_array_equal(*embed({"text": raw})["elmo"])
    embed = Embed("text", model=model, tokenizer="whitespace", pool="mean")
    assert not np.array_equal(*embed({"text": raw})["elmo"])
    with pytest.raises(ValueError, match="^tokenizer: expected auto"):
        Embed("text", model=model, tokenizer="words")


def test_a_column_of_pooled_vectors(model, texts):
    mapped = texts.map(Embed("text", model=model, pool="mean"), batched=True, batch_size=4)
    pooled = [array.mean(axis=0) if len(array) else np.zeros(8, np.float32) for array in expected(model)]
    assert_rows(mapped, pooled)


@pytest.mark.parametrize("method, name", [("fork", "small"), ("spawn", "small"), ("fork", "bundled")])
def test_two_processes(model, texts, method, name, monkeypatch):
    model = model if name == "small" else name  # the bundled model is large enough for PyTorch's own threads
    embed = Embed("text", model=model)
    embed({"text": TEXTS})  # the engine's threads run before the processes start
    monkeypatch.setattr(multiprocess, "Pool", multiprocess.get_context(method).Pool)
    assert_rows(texts.map(embed, batched=True, batch_size=4, num_proc=2), expected(model))


def test_fingerprints_follow_arguments_and_weights_alone(model, texts, tmp_path):
    embed = Embed("text", model=model)
    before = Hasher.hash(embed)
    first = texts.map(embed, batched=True)
    assert before == Hasher.hash(embed) == Hasher.hash(Embed("text", model=model))
    assert first.cache_files == texts.map(Embed("text", model=model), batched=True).cache_files != []
    other_model = write_model(tmp_path / "other", seed=1)
    assert len({before, *(Hasher.hash(Embed("text", **arguments)) for arguments in (
        {"model": other_model}, {"model": model, "layers": "top"}, {"model": model, "state": "zero"}))}) == 4
    content = pickle.dumps(Embed("text", model=other_model))
    assert len(content) < 1000
    assert_rows(texts.map(pickle.loads(content), batched=True), expected(other_model))
    write_model(other_model, seed=2)
    with pytest.raises(ValueError, match="^model: expected the weights that .*other had before, got others$"):
        pickle.loads(content)({"text": TEXTS})


@pytest.mark.parametrize("batch, message", [
    ({"words": ["a"]}, "column: expected one of words, got 'text'"),
    ({"text": "a text"}, "text: expected a list of texts, got a single text; .*batched=True"),
    ({"text": ["a", None]}, r"text\[1\]: expected a string or a list of tokens, got NoneType")])
def test_bad_columns_are_named(model, batch, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Embed("text", model=model)(batch)


def test_documented_code():
    names, readme = run_documented_code("Hugging Face datasets")
    assert_rows(names["embedded"], elmo_fast.load().embed(names["dataset"]["text"], "average", pool="mean"))
    assert_rows(readme["embedded"], elmo_fast.load().embed(["A new play ."], "average"))
