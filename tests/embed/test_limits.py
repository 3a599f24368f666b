"""Numbers and inputs far from what is meant are refused in a line, or bounded by the text, before memory is spent."""

import itertools

import numpy as np
import pytest

from elmo_fast import ConfigurationError, ElmoEmbedder, Options, load, random_weights
from elmo_fast.compat.bilm import BidirectionalLanguageModel
from elmo_fast.embed.stream import SlotStream
from elmo_fast.testing import tiny
from tests.support.files import paths, run, write_model

SENTENCES = [["The", "children", "play", "."], [], ["It", "rained"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("state", ["carry", "zero", "warm"])
@pytest.mark.parametrize("batch_size", [3, 1000, 1 << 20])
def test_a_batch_is_no_larger_than_the_text(model, state, batch_size, monkeypatch):
    begun, begin = [], SlotStream._begin
    monkeypatch.setattr(SlotStream, "_begin", lambda stream, slots: begun.append(slots) or begin(stream, min(slots, 9)))
    small, large = (ElmoEmbedder(*paths(model), state=state) for _ in range(2))
    for _ in range(2):  # from the carried states too
        for found, expected in zip(small.embed_sentences(SENTENCES, 3), large.embed_sentences(SENTENCES, batch_size),
                                   strict=True):
            np.testing.assert_array_equal(found, expected)
    assert begun == [3] * 4
    if state == "carry":
        assert large.elmo_bilm.lstm._states[0].shape[1] == 3


def test_sentences_are_read_as_they_are_needed(model):
    source = iter(itertools.cycle(SENTENCES))
    vectors = ElmoEmbedder(*paths(model)).embed_sentences(source, 2)
    assert next(vectors).shape[1] == 4


@pytest.mark.parametrize("batch_size", [(1 << 20) + 1, 10**7, 2**70])
def test_larger_batches_are_refused(model, tmp_path, capsys, batch_size):
    message = f"batch_size: expected an integer of at most 1,048,576, got {batch_size:,}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        load(model).embed(SENTENCES, batch_size=batch_size)
    with pytest.raises(ValueError, match=f"^max_{message}$"):
        BidirectionalLanguageModel(*paths(model), max_batch_size=batch_size)
    text = tmp_path / "text.txt"
    text.write_text("a b\n")
    status, _, errors = run(capsys, "embed", text, tmp_path / "out.hdf5", "--all", "--model", model, "--batch-size",
                            batch_size, "--quiet")
    assert status == 2 and errors == f"elmo-fast: error: {message}\n" and not (tmp_path / "out.hdf5").exists()


def test_weights_that_no_memory_holds_are_not_drawn():
    with pytest.raises(ConfigurationError, match="^options: expected a model whose weights fit into the .* GB of this"):
        random_weights(Options.from_dict(tiny(lstm__dim=1 << 20, lstm__projection_dim=1 << 20, lstm__n_layers=1000)))
