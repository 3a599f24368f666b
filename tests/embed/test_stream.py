"""Sentences back to back in slots give what batches give, in the order of the input."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_fast import ElmoEmbedder, load
from elmo_fast.compat.bilm import BidirectionalLanguageModel
from elmo_fast.engine import stream as slot_stream
from elmo_fast.engine.stream import SlotStream
from elmo_fast.nn.layers.lstm import ElmoLstm
from elmo_fast.nn.lookup import TokenEncoder
from elmo_fast.testing import SAME_MODEL
from tests.support.files import paths, run, write_model
from tests.support.grid import grid, mostly_long
from tests.support.models import SHAPES, bilm, texts


def check(texts, size, shape="two layers", backend="native", **arguments):
    """A stream of each text of a list against its batches: vectors and carried states, in the native engine by bits."""
    stream, batch = (ElmoEmbedder.from_bilm(bilm(SHAPES[shape], backend=backend, **arguments)) for _ in range(2))
    tolerance = {"atol": 0 if backend == "native" else SAME_MODEL, "rtol": 0}
    for sentences in texts:
        if backend == "reference":
            found = list(stream.embed_sentences(iter(sentences), size))
        else:
            slots = SlotStream(stream.model, size, stream.state)
            slots.carried = stream.carried
            found = list(slots.run(iter(sentences)))
            stream.carried = slots.carried
        expected = [vectors for first in range(0, len(sentences), size)
                    for vectors in batch.embed_batch(sentences[first : first + size])]
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert one.shape == other.shape and one.dtype == np.float32, number
            np.testing.assert_allclose(one, other, **tolerance, err_msg=f"sentence {number}")
        states = stream.elmo_bilm._elmo_lstm._states or (), batch.elmo_bilm._elmo_lstm._states or ()
        for one, other in zip(*states, strict=True):
            np.testing.assert_allclose(one, other, **tolerance)


def bound(monkeypatch, rows=1, tokens=1, table=1 << 15):
    """Chunks that end in the middle of sentences, little reading ahead, a small cache of token vectors."""
    monkeypatch.setattr(slot_stream, "_ROWS_PER_CHUNK", rows)
    monkeypatch.setattr(slot_stream, "_TOKENS_AHEAD", tokens)
    monkeypatch.setattr(slot_stream, "_TABLE_ROWS", table)


@pytest.mark.parametrize("backend, state, size, chunks", grid(
    ["torch", "native"], ["carry", "zero", "warm"], [1, 3, 8, 64], ["whole", "small"]))
def test_stream_equals_batches(monkeypatch, backend, state, size, chunks):
    if chunks != "whole":
        bound(monkeypatch, table=25)
    check([texts(40), texts(7, seed=1)], size, "clips that fire", backend, state=state)


@pytest.mark.parametrize("arguments", [
    *({"shape": shape} for shape in ("one layer", "four layers", "no projection", "no skip connections")),
    *({"backend": "reference", "state": state} for state in ("carry", "zero", "warm"))])
def test_other_models(arguments):
    check([texts(50, seed=3)], 5, **arguments)


@settings(max_examples=25)
@given(st.lists(st.one_of(st.integers(0, 9), st.sampled_from([0, 1, 90])), max_size=25), st.integers(1, 9),
       st.sampled_from(["carry", "zero"]), st.sampled_from([1, 16, 4096]))
def test_sentences_of_any_lengths(lengths, size, state, rows):
    with pytest.MonkeyPatch.context() as monkeypatch:
        bound(monkeypatch, rows, 40)
        check([[[f"w{k % 7}" for k in range(length)] for length in lengths]], size, state=state)


def test_reading_ahead_is_bounded(monkeypatch):
    bound(monkeypatch, 16, 50)
    taken = []
    source = (taken.append(number) or ["a"] * (500 if number == 0 else 1) for number in itertools.count())
    stream = ElmoEmbedder.from_bilm(bilm()).embed_sentences(source, 2)
    assert taken == []
    next(stream)
    assert len(taken) < 100


@pytest.fixture
def little_memory(monkeypatch):
    """Runs of more packed rows, and encodings of more tokens, than `most` fail as torch does without memory."""
    def limit(most, error):
        write, strings = ElmoLstm.write, TokenEncoder.strings

        def limited_write(lstm, tokens, rows, *arguments):
            if rows.shape[1] > most:
                raise error
            return write(lstm, tokens, rows, *arguments)

        def limited_strings(encoder, tokens):
            if len(tokens) > most:
                raise error
            return strings(encoder, tokens)

        monkeypatch.setattr(ElmoLstm, "write", limited_write)
        monkeypatch.setattr(TokenEncoder, "strings", limited_strings)

    return limit


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
]


@pytest.mark.parametrize("state", mostly_long(["carry", "zero", "warm"]))
@pytest.mark.parametrize("slots, most, error", [
    (8, 30, OUT_OF_MEMORY[0]), (8, 3, OUT_OF_MEMORY[1]), (1, 5, OUT_OF_MEMORY[2]), (3, 1, OUT_OF_MEMORY[0])])
def test_without_memory_chunks_are_smaller(monkeypatch, caplog, little_memory, slots, most, state, error):
    bound(monkeypatch, 64, 100)
    plenty, little = (ElmoEmbedder.from_bilm(bilm(SHAPES["clips that fire"], backend="native", state=state))
                      for _ in range(2))
    sentences = [*texts(20), [], ["long"] * 70, *texts(9, seed=1)]
    expected = list(plenty.embed_sentences(sentences, slots))
    little.elmo_bilm._initial_state(state)  # the warm text has no chunks
    little_memory(most, error)
    found = list(little.embed_sentences(sentences, slots))
    assert len(found) == len(expected) and all(map(np.array_equal, found, expected))
    for one, other in zip(*(each.elmo_bilm._elmo_lstm._states or () for each in (plenty, little)), strict=True):
        assert torch.equal(one, other)
    assert [record.getMessage()[:13] for record in caplog.records] == ["out of memory"]


# ---- batch sizes far from what is meant are bounded by the text, or refused, before memory is spent ----


@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
@pytest.mark.parametrize("batch_size", [3, 1000, 1 << 20])
def test_a_batch_is_no_larger_than_the_text(state, batch_size):
    sentences = [["The", "children", "play", "."], [], ["It", "rained"]]
    small, large = (ElmoEmbedder.from_bilm(bilm(state=state)) for _ in range(2))
    for _ in range(2):  # from the carried states too
        runs = (embedder.embed_sentences(sentences, size) for embedder, size in ((small, 3), (large, batch_size)))
        for found, expected in zip(*runs, strict=True):
            np.testing.assert_array_equal(found, expected)
    if state == "carry":
        assert large.elmo_bilm._elmo_lstm._states[0].shape[1] == 3


@pytest.mark.parametrize("batch_size", [(1 << 20) + 1, 10**7, 2**70])
def test_larger_batches_are_refused(tmp_path, capsys, batch_size):
    model, text = write_model(tmp_path / "model"), tmp_path / "text.txt"
    message = f"batch_size: expected an integer of at most 1,048,576, got {batch_size:,}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        load(model).embed(["a"], batch_size=batch_size)
    with pytest.raises(ValueError, match=f"^max_{message}$"):
        BidirectionalLanguageModel(*paths(model), max_batch_size=batch_size)
    text.write_text("a b\n")
    status, _, errors = run(capsys, "embed", text, tmp_path / "out.hdf5", "--all", "--model", model, "--batch-size",
                            batch_size, "--quiet")
    assert status == 2 and errors == f"elmo-fast: error: {message}\n" and not (tmp_path / "out.hdf5").exists()
