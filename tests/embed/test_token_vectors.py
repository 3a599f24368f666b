"""Token vectors are cached between calls: known tokens are not encoded again, and results have the same bits."""

import copy

import numpy as np
import pytest
import torch

from elmo_fast import ElmoEmbedder, build_token_table
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.engine import stream as stream_module
from elmo_fast.nn.lookup import TokenEncoder
from tests.support.engines import needs_native
from tests.support.models import SHAPES, bilm

pytestmark = needs_native  # its bits do not depend on the tokens of a batch
SENTENCES = [["the", "old", "man"], ["the", "sea", "and", "the", "man"], [], ["sea"]]


@pytest.fixture
def encoded(monkeypatch):
    """The encoded tokens."""
    tokens, strings = [], TokenEncoder.strings

    def recording(encoder, new):
        tokens.extend(new)
        return strings(encoder, new)

    monkeypatch.setattr(TokenEncoder, "strings", recording)
    return tokens


def model(**arguments):
    return bilm(SHAPES["two layers"], **{"state": "zero", "backend": "native", **arguments})


def alone(sentence, **arguments):
    return LoadedElmo(model(**arguments)).embed([sentence], state="zero")[0]


def test_a_token_is_encoded_once(encoded):
    elmo = LoadedElmo(model())
    results = [elmo.embed([sentence], state="zero")[0] for sentence in SENTENCES]
    batch = elmo.embedder.embed_batch(SENTENCES)
    assert encoded == ["<S>", "the", "old", "man", "</S>", "sea", "and"]
    for sentence, single, batched in zip(SENTENCES, results, batch, strict=True):
        expected = alone(sentence)
        np.testing.assert_array_equal(single, expected)
        np.testing.assert_array_equal(batched, expected)


@pytest.mark.parametrize("change", [
    lambda elmo: elmo.bilm.get_parameter("_token_embedder._projection.weight").data.mul_(1.5),
    lambda elmo: elmo.bilm.get_parameter("_token_embedder._char_embedding_weights").detach().add_(0.25),
    lambda elmo: setattr(elmo.bilm, "precision", "low"), lambda elmo: setattr(elmo.bilm, "backend", "torch"),
    lambda elmo: elmo.bilm.half()])
def test_changes_that_renew_the_vectors(change):
    elmo = LoadedElmo(model())
    elmo.embed(SENTENCES, state="zero")
    change(elmo)
    fresh = copy.deepcopy(elmo)
    np.testing.assert_array_equal(elmo.embed(SENTENCES[1:2], state="zero")[0],
                                  fresh.embed(SENTENCES[1:2], state="zero")[0])


def test_the_choice_for_words_outside_a_table():
    network = model()
    network.token_table = build_token_table(network, ["the", "sea"], unknown="encode")
    elmo = LoadedElmo(network)
    elmo.embed([["the", "old", "sea"]], state="zero")
    network.token_table.unknown = "error"
    with pytest.raises(ValueError, match="token table: expected words of the table .* got 'old'"):
        elmo.embed([["old"]], state="zero")


def test_weights_that_change_within_a_stream(monkeypatch, encoded):
    monkeypatch.setattr(stream_module, "_ROWS_PER_CHUNK", 16)
    edited, fresh = ElmoEmbedder.from_bilm(model()), ElmoEmbedder.from_bilm(model())
    stream = edited.embed_sentences([["sea"] * 20] * 4, 1)
    next(stream)
    for each in (edited, fresh):
        each.elmo_bilm.get_parameter("_token_embedder._projection.weight").data.mul_(1.5)
    *_, last = stream
    assert encoded.count("sea") == 2
    np.testing.assert_array_equal(last, fresh.embed_sentence(["sea"] * 20))


def test_calls_in_inference_mode(monkeypatch):
    monkeypatch.setattr(stream_module, "_TABLE_ROWS", 4)
    elmo, sentences = LoadedElmo(model()), [*SENTENCES, ["a", "b"], ["c", "d", "e", "f"], ["sea", "g"]]
    for k, sentence in enumerate(sentences):
        with torch.inference_mode(k % 3 < 2):
            np.testing.assert_array_equal(elmo.embed([sentence], state="zero")[0], alone(sentence))
