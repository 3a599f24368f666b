"""Sentences back to back in slots give what batches give, in the order of the input."""

import numpy as np
import pytest
import torch

from elmo_fast import ElmoEmbedder
from elmo_fast.embed import stream as slot_stream
from elmo_fast.testing import SAME_MODEL
from tests.support.grid import grid
from tests.support.models import SHAPES, bilm

WORDS = [f"word{number}" for number in range(60)]


def texts(count, longest=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (count,), generator=generator).tolist()
    return [[WORDS[k] for k in torch.randint(0, 60, (length,), generator=generator)] for length in lengths]


def batches(embedder, sentences, size):
    return [vectors for first in range(0, len(sentences), size)
            for vectors in embedder.embed_batch(sentences[first : first + size])]


def assert_same(found, expected, backend):
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected)):
        assert one.shape == other.shape and one.dtype == np.float32, number
        if backend == "native":
            np.testing.assert_array_equal(one, other, err_msg=f"sentence {number}")
        else:
            np.testing.assert_allclose(one, other, atol=SAME_MODEL, err_msg=f"sentence {number}")


def cut(chunks, monkeypatch):
    """Chunks that end in the middle of sentences, little reading ahead, a small token table; as on a GPU, too."""
    if chunks == "small, one ahead":
        collect_later(monkeypatch)
    if chunks != "whole":
        monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", 1)
        monkeypatch.setattr(slot_stream, "_TOKENS_AHEAD", 1)
        monkeypatch.setattr(slot_stream, "_TABLE_ROWS", 25)


def collect_later(monkeypatch):
    begin = slot_stream.SlotStream.__init__

    def one_ahead(self, *arguments):
        begin(self, *arguments)
        self._chunks_ahead = 1

    monkeypatch.setattr(slot_stream.SlotStream, "__init__", one_ahead)


@pytest.mark.parametrize("backend, state, size, chunks", grid(
    ["torch", "native"], ["carry", "zero", "warm"], [1, 3, 8, 64], ["whole", "small", "small, one ahead"]))
def test_stream_equals_batches(monkeypatch, backend, state, size, chunks):
    cut(chunks, monkeypatch)
    stream, batch = (ElmoEmbedder.from_bilm(bilm(SHAPES["clips that fire"], backend=backend, state=state))
                     for _ in range(2))
    for seed, count in enumerate((40, 7)):
        sentences = texts(count, seed=seed)
        found = list(stream.embed_sentences(iter(sentences), size))
        assert_same(found, batches(batch, sentences, size), backend)
    if state == "carry":
        for one, other in zip(stream.elmo_bilm._elmo_lstm._states, batch.elmo_bilm._elmo_lstm._states):
            assert torch.equal(one, other) if backend == "native" else torch.allclose(one, other, atol=SAME_MODEL)


@pytest.mark.parametrize("shape", ["one layer", "four layers", "no projection", "no skip connections"])
def test_other_models(shape):
    stream, batch = (ElmoEmbedder.from_bilm(bilm(SHAPES[shape], backend="native")) for _ in range(2))
    sentences = texts(50, seed=3)
    assert_same(list(stream.embed_sentences(sentences, 5)), batches(batch, sentences, 5), "native")


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("sentences", [
    [], [[]], [[], []], [["a"], []], [[], ["a"]], [["a"], ["b"], []], [["a"]] * 3 + [[]],
])
def test_empty_sentences(sentences, size):
    stream, batch = (ElmoEmbedder.from_bilm(bilm(backend="native")) for _ in range(2))
    for embedder in (stream, batch):
        embedder.embed_batch([["before"], ["it"]])
    assert_same(list(stream.embed_sentences(sentences, size)), batches(batch, sentences, size), "native")
    for one, other in zip(stream.elmo_bilm._elmo_lstm._states, batch.elmo_bilm._elmo_lstm._states):
        assert torch.equal(one, other)


@pytest.mark.parametrize("ahead", [0, 1])
def test_one_slot_far_behind(monkeypatch, ahead):
    if ahead:
        collect_later(monkeypatch)
    monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", 64)
    monkeypatch.setattr(slot_stream, "_TOKENS_AHEAD", 100)
    sentences = [["long"] * 300 if number == 1 else ["a", "b"] for number in range(200)]
    stream, batch = (ElmoEmbedder.from_bilm(bilm(backend="native")) for _ in range(2))
    assert_same(list(stream.embed_sentences(sentences, 4)), batches(batch, sentences, 4), "native")


def test_an_abandoned_stream_leaves_the_states_alone():
    embedder = ElmoEmbedder.from_bilm(bilm())
    embedder.embed_sentence(["before"])
    before = [each.clone() for each in embedder.elmo_bilm._elmo_lstm._states]
    stream = embedder.embed_sentences(texts(400), 2)
    next(stream)
    stream.close()
    for one, other in zip(before, embedder.elmo_bilm._elmo_lstm._states):
        assert torch.equal(one, other)


def test_reading_ahead_is_bounded(monkeypatch):
    monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", 16)
    monkeypatch.setattr(slot_stream, "_TOKENS_AHEAD", 50)
    taken = []
    source = (taken.append(number) or ["a"] * (500 if number == 0 else 1) for number in range(1000))
    stream = ElmoEmbedder.from_bilm(bilm()).embed_sentences(source, 2)
    next(stream)
    assert len(taken) < 100


def test_the_next_chunk_runs_before_outputs_are_put_in_place(monkeypatch):
    collect_later(monkeypatch)
    monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", 1)
    order = []
    for name in ("_advance", "_collect"):
        run = getattr(slot_stream.SlotStream, name)
        monkeypatch.setattr(slot_stream.SlotStream, name,
                            lambda self, *given, name=name, run=run: order.append(name) or run(self, *given))
    list(ElmoEmbedder.from_bilm(bilm()).embed_sentences([["a"] * 40, ["b"] * 40], 2))
    assert order == ["_advance", "_advance", "_collect", "_advance", "_collect", "_collect"]


def test_a_bad_sentence_is_named():
    stream = ElmoEmbedder.from_bilm(bilm()).embed_sentences([["fine"], "not split"])
    with pytest.raises(ValueError, match=r"sentences\[1\]: expected a list of tokens"):
        list(stream)


def test_a_long_run_of_empty_sentences_does_not_end_the_stream(monkeypatch):
    monkeypatch.setattr(slot_stream, "_TOKENS_AHEAD", 1)
    sentences = [["a"], *[[]] * 100, ["b"]]
    stream, batch = (ElmoEmbedder.from_bilm(bilm()) for _ in range(2))
    assert_same(list(stream.embed_sentences(sentences, 1)), batches(batch, sentences, 1), stream.elmo_bilm.backend)
