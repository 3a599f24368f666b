"""`ElmoModule` in sentence-transformers itself: encoding, poolings, gradients, and models that are saved and loaded."""

import shutil

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast.testing import SAME_MODEL
from tests.support.docs import run_documented_code
from tests.support.files import write_model

pytestmark = pytest.mark.long
library = pytest.importorskip("sentence_transformers", reason="not installed: make test-integrations")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Dense, Pooling  # noqa: E402

from elmo_fast.integrations.sentence_transformers import ElmoModule  # noqa: E402

TEXTS = ["A new play opened .", "One", "They play outside and then they go home again .", "naïve café 東京"] * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("model")))


def transformer(module, *more, mode="mean"):
    pooling = Pooling(module.get_embedding_dimension(), pooling_mode=mode)
    return SentenceTransformer(modules=[module, pooling, *more], device="cpu")


def expected(model, layers, state, pool):
    return np.stack([vector.ravel() for vector in elmo_fast.load(model).embed(TEXTS, layers, state, pool)])


@pytest.mark.parametrize("layers, state, pool, width", [
    ("average", "warm", "mean", 8), ("top", "zero", "max", 8), ("all", "warm", "mean", 24),
    ([0.5, 0, 2], "zero", "mean", 8)])
def test_encode_gives_the_vectors_of_embed(model, layers, state, pool, width):
    encoder = transformer(ElmoModule(model, layers=layers, state=state), mode=pool)
    vectors = encoder.encode(TEXTS, batch_size=5)
    assert vectors.shape == (len(TEXTS), width) == (len(TEXTS), encoder[0].get_word_embedding_dimension())
    np.testing.assert_allclose(vectors, expected(model, layers, state, pool), rtol=0, atol=SAME_MODEL)
    np.testing.assert_allclose(encoder.encode(TEXTS[2]), vectors[2], rtol=0, atol=SAME_MODEL)


def test_token_embeddings_empty_texts_prompts_and_a_maximal_length(model):
    encoder = transformer(ElmoModule(model, max_seq_length=4))
    elmo = elmo_fast.load(model)
    tokens = encoder.encode([TEXTS[2], "", "One"], output_value="token_embeddings")
    assert [part.shape for part in tokens] == [(4, 8), (1, 8), (1, 8)]  # the library gives at least one
    assert not tokens[1].any()
    np.testing.assert_allclose(tokens[0], elmo.embed(["They play outside and"], "average")[0], rtol=0, atol=SAME_MODEL)
    assert encoder.max_seq_length == 4
    assert not encoder.encode(["", " "]).any() and not encoder.encode("").any()
    np.testing.assert_allclose(encoder.encode("play", prompt="A new "), encoder.encode("A new play"), rtol=0,
                               atol=SAME_MODEL)
    similarity = encoder.similarity(encoder.encode(TEXTS[:2]), encoder.encode(TEXTS[:2]))
    np.testing.assert_allclose(similarity.diagonal(), 1, rtol=1e-6)


def test_saved_and_loaded(model, tmp_path):
    copied = shutil.copytree(model, tmp_path / "copied")
    encoder = transformer(ElmoModule(str(copied), layers="all", state="zero", max_seq_length=5))
    before = encoder.encode(TEXTS)
    encoder.save(str(tmp_path / "saved"))
    shutil.rmtree(copied)
    second = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    assert second[0].get_config_dict() == encoder[0].get_config_dict() and second.max_seq_length == 5
    np.testing.assert_array_equal(second.encode(TEXTS), before)
    second.save(str(tmp_path / "saved"))
    np.testing.assert_array_equal(
        SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True).encode(TEXTS), before)


def test_the_tokenizer_is_saved(model, tmp_path):
    raw = ["It isn't (bad).", "It is n't ( bad ) ."]
    for tokenizer, is_equal in (("auto", True), ("whitespace", False)):
        encoder = transformer(ElmoModule(model, tokenizer=tokenizer))
        encoder.save(str(tmp_path / tokenizer))
        second = SentenceTransformer(str(tmp_path / tokenizer), device="cpu", trust_remote_code=True)
        vectors = second.encode(raw)
        assert np.allclose(*vectors, rtol=0, atol=SAME_MODEL) == is_equal
        np.testing.assert_array_equal(vectors, encoder.encode(raw))
    with pytest.raises(ValueError, match="^tokenizer: expected a name or package.module:function"):
        ElmoModule(model, tokenizer=list).get_config_dict()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_training_changes_and_saves_the_trainable_weights(model, tmp_path, requires_grad):
    encoder = transformer(ElmoModule(model, requires_grad=requires_grad), Dense(8, 3))
    parameters = [part for part in encoder.parameters() if part.requires_grad]
    assert len(parameters) == 2 + requires_grad * len(list(encoder[0].bilm.parameters()))
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    encoder(encoder[0].preprocess(TEXTS))["sentence_embedding"].square().sum().backward()
    optimizer.step()
    assert (encoder[0].bilm.fingerprint() != ElmoModule(model).bilm.fingerprint()) == requires_grad
    encoder.save(str(tmp_path / "saved"))
    second = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(second.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize("arguments, message", [
    ({"state": "carry"}, "state: expected one of zero, warm, got 'carry'"), ({"layers": "first"}, "layers: expected"),
    ({"layers": [1]}, "layers: expected 3 numbers"), ({"backend": "fast"}, "backend: expected one of"),
    ({"max_seq_length": -1}, "max_seq_length: expected an integer of at least 1, got -1"),
    ({"max_seq_length": 0}, "max_seq_length: expected an integer of at least 1, got 0")])
def test_bad_arguments_are_named(model, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ElmoModule(model, **arguments)
    with pytest.raises(ValueError, match=r"^inputs\[1\]: expected a string, got tuple$"):
        ElmoModule(model).preprocess(["a", ("a", "pair")])


def test_documented_code():
    names, readme = run_documented_code("sentence-transformers")
    assert names["encoder"].encode(["a play"]).shape == (1, 384) and names["vectors"].shape == (2, 384)
    pooled = elmo_fast.load().embed(["a play"], "average", pool="mean")
    np.testing.assert_allclose(readme["encoder"].encode(["a play"]), pooled, rtol=0, atol=SAME_MODEL)
