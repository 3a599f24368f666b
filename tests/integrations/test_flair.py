"""`ElmoEmbeddings` in flair itself: tokens' vectors, stacks, and a tagger that is trained, saved and loaded."""

import copy
import pickle

import numpy as np
import pytest
import torch

import elmo_fast
from tests.support.docs import run_documented_code
from tests.support.files import write_model
from tests.support.manylangs import write_manylangs

pytestmark = pytest.mark.long
pytest.importorskip("flair", reason="flair is not installed: make test-flair")

from flair.data import Dictionary, Sentence  # noqa: E402
from flair.embeddings import DocumentPoolEmbeddings, StackedEmbeddings  # noqa: E402
from flair.models import SequenceTagger  # noqa: E402

from elmo_fast.integrations.flair import ElmoEmbeddings  # noqa: E402

TEXTS = ["A new play opened .", "One", "They play outside and then they go home .", "naïve café 東京"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("model")))


def sentences():
    return [Sentence(text.split()) for text in TEXTS]


def vectors(texts):
    return [np.stack([token.get_embedding().numpy() for token in sentence]) for sentence in texts]


def assert_same(actual, expected, atol=0):
    assert len(actual) == len(expected)
    for array, truth in zip(actual, expected):
        np.testing.assert_allclose(array, truth, rtol=0, atol=atol)


@pytest.mark.parametrize("layers, state, width", [
    ("average", "warm", 8), ("top", "zero", 8), ("all", "warm", 24), ([0.5, 0, 2], "zero", 8)])
def test_vectors_are_those_of_embed(model, layers, state, width):
    embeddings = ElmoEmbeddings(model, layers=layers, state=state, batch_size=3)
    expected = elmo_fast.load(model).embed(TEXTS, layers, state)
    if layers == "all":
        expected = [np.concatenate(list(array), axis=1) for array in expected]
    assert embeddings.embedding_length == width and embeddings.embedding_type == "word-level"
    assert_same(vectors(embeddings.embed(sentences())), expected)
    assert_same(vectors(embeddings.embed(Sentence(TEXTS[0].split()))), expected[:1])
    assert embeddings.embed([]) == []


def test_stacks_pools_and_copies(model):
    top, average = ElmoEmbeddings(model, layers="top"), ElmoEmbeddings(model)
    assert top.name != average.name
    expected = [np.concatenate(pair, axis=1) for pair in zip(vectors(average.embed(sentences())),
                                                             vectors(top.embed(sentences())))]
    stacked = sentences()
    StackedEmbeddings([average, top]).embed(stacked)
    assert_same(vectors(stacked), expected)
    pooled = Sentence(TEXTS[0].split())
    DocumentPoolEmbeddings([average]).embed(pooled)
    torch.testing.assert_close(pooled.get_embedding(), torch.from_numpy(expected[0][:, :8].mean(axis=0)))
    for clone in (pickle.loads(pickle.dumps(top)), copy.deepcopy(top)):
        assert_same(vectors(clone.embed(sentences())), vectors(top.embed(sentences())))


def test_a_tagger_is_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    labels = Dictionary(add_unk=False)
    batch = sentences()
    for sentence in batch:
        for token in sentence:
            label = "VERB" if token.text in ("play", "opened", "go") else "OTHER"
            labels.add_item(label)
            token.add_label("pos", label)
    tagger = SequenceTagger(ElmoEmbeddings(), labels, "pos", hidden_size=8, use_crf=False)
    parameters = [part for part in tagger.parameters() if part.requires_grad]
    before = tagger.embeddings.bilm.fingerprint()
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    losses = []
    for _ in range(20):
        loss, _ = tagger.forward_loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4 and tagger.embeddings.bilm.fingerprint() == before
    tagger.eval()
    tagger.save(tmp_path / "tagger.pt")
    second_tagger = SequenceTagger.load(tmp_path / "tagger.pt")
    assert second_tagger.embeddings.name == tagger.embeddings.name
    first, second = sentences(), sentences()
    tagger.predict(first, label_name="found")
    second_tagger.predict(second, label_name="found")
    tags = [[token.get_label("found") for sentence in part for token in sentence] for part in (first, second)]
    assert [label.value for label in tags[0]] == [label.value for label in tags[1]]
    assert {label.value for label in tags[0]} == {"VERB", "OTHER"}
    np.testing.assert_allclose(*([label.score for label in part] for part in tags), atol=1e-5)


def test_documented_code():
    names, readme = run_documented_code("flair")
    expected = elmo_fast.load().embed([names["sentence"].to_tokenized_string()], "all")[0]
    assert_same(vectors([names["sentence"]]), [np.concatenate(list(expected), axis=1)])
    assert readme["embeddings"].embedding_length == 384


def test_a_model_of_elmoformanylangs_is_refused(tmp_path):
    with pytest.raises(elmo_fast.ConfigurationError, match="found a model of ELMoForManyLangs, which elmo_fast.load"):
        ElmoEmbeddings(str(write_manylangs(tmp_path)))
