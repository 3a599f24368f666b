"""`BiLm.forward` caches vectors of character ids between calls: results have the bits of a fresh model."""

import copy

import pytest
import torch

from elmo_fast import batch_to_ids
from elmo_fast.engine.tokens import SpareVectors
from elmo_fast.nn.layers.encoder import CharacterEncoder
from tests.support.engines import needs_native
from tests.support.models import SENTENCES, SHAPES, bilm, texts

pytestmark = needs_native  # its bits do not depend on the batch
BATCHES = [SENTENCES, SENTENCES[1:3], [], [[]], [["sea"]], *([sentence] for sentence in texts(8, seed=2)), SENTENCES]


@pytest.fixture
def token_counts(monkeypatch):
    """The number of tokens of every call of the encoder."""
    counts, encode_rows = [], CharacterEncoder.encode_rows

    def recorded(encoder, ids, backend):
        counts.append(len(ids))
        return encode_rows(encoder, ids, backend)

    monkeypatch.setattr(CharacterEncoder, "encode_rows", recorded)
    return counts


def model(**arguments):
    return bilm(SHAPES["two layers"], **{"state": "zero", "backend": "native", **arguments})


def outputs(network, batch, **arguments):
    ids = batch_to_ids(batch) if batch else torch.zeros(0, 0, 50, dtype=torch.int64)
    with torch.no_grad():
        return [layer.clone() for layer in network(ids, **arguments).activations]


def same(actual, expected):
    return all(map(torch.equal, actual, expected)) and len(actual) == len(expected)


@pytest.mark.parametrize("precision", ["highest", "medium", "low"])
@pytest.mark.parametrize("state", ["zero", "carry", "warm"])
def test_bits(precision, state):
    cached, fresh = model(precision=precision, state=state), model(precision=precision, state=state)
    for batch in BATCHES:
        fresh._spare = SpareVectors()
        assert same(outputs(cached, batch), outputs(fresh, batch))


def test_known_tokens_are_not_encoded_again(token_counts):
    network = model()
    outputs(network, [["the", "sea"], ["the", "old", "man"]])
    outputs(network, [["man"], ["the", "old", "sea"]])
    assert token_counts == [6]  # with <S> and </S>
    outputs(network, [["the", "young", "man"]], boundaries="present")
    assert token_counts == [6, 1]


@pytest.mark.parametrize("change", [
    lambda network: network.get_parameter("_token_embedder._projection.weight").data.mul_(1.5),
    lambda network: network.get_parameter("_token_embedder._char_embedding_weights").detach().add_(0.25),
    lambda network: network.get_parameter("_token_embedder.char_conv_0.bias").detach().numpy().__iadd__(0.5),
    lambda network: setattr(network, "precision", "low"), lambda network: setattr(network, "backend", "torch"),
    lambda network: network.half()])
def test_changes_of_the_model_are_detected(change):
    network = model()
    outputs(network, SENTENCES)
    change(network)
    assert same(outputs(network, SENTENCES[:2]), outputs(copy.deepcopy(network), SENTENCES[:2]))


def test_gradients_reach_the_encoder():
    network = bilm(SHAPES["two layers"], requires_grad=True, state="zero", backend="native")
    outputs(network, SENTENCES)
    network._elmo_lstm.requires_grad_(False)
    sum(layer.sum() for layer in network(batch_to_ids(SENTENCES)).activations).backward()
    assert all(value.grad is not None and value.grad.any() for value in network.token_source.parameters())


def test_calls_in_inference_mode():
    network = model()
    for k, batch in enumerate(BATCHES):
        with torch.inference_mode(k % 3 < 2):
            actual = outputs(network, batch)
        assert same(actual, outputs(model(), batch))
