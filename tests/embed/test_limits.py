"""Numbers and inputs far from what is meant are refused in a line, or bounded by the text, before memory is spent."""

import itertools
import json

import numpy as np
import pytest

from elmo_fast import ConfigurationError, ElmoEmbedder, Options, load, random_weights
from elmo_fast.compat.bilm import BidirectionalLanguageModel
from elmo_fast.embed.stream import SlotStream
from elmo_fast.testing import tiny
from tests.support.files import paths, read_hdf5, run, write_model

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
    options_file, weight_file = paths(model)
    status, _, errors = run(capsys, "embed", text, tmp_path / "out.hdf5", "--all", "--options-file", options_file,
                            "--weight-file", weight_file, "--batch-size", batch_size, "--quiet")
    assert status == 2 and errors == f"elmo-fast: error: {message}\n" and not (tmp_path / "out.hdf5").exists()


def test_a_large_batch_size_of_the_command_is_bounded_by_the_text(model, tmp_path, capsys):
    text, found = tmp_path / "text.txt", []
    text.write_text("The children play .\nIt rained\n")
    for batch_size in (2, 1_000_000):
        out = tmp_path / f"{batch_size}.hdf5"
        assert run(capsys, "embed", text, out, "--top", "--options-file", paths(model)[0], "--weight-file",
                   paths(model)[1], "--batch-size", batch_size, "--quiet")[0] == 0
        found.append(read_hdf5(out))
    assert all(np.array_equal(found[0][key], found[1][key]) for key in ("0", "1"))


@pytest.mark.parametrize("change, message", [
    ({"lstm__n_layers": 2**63}, "lstm: n_layers: expected at most 1,000, got 9223372036854775808"),
    ({"lstm__dim": 10**30}, "lstm: dim: expected at most 1,048,576, got"),
    ({"lstm__dim": 1e300}, "lstm: dim: expected at most 1,048,576, got 1e[+]300"),
    ({"char_cnn__n_highway": 2**31}, "char_cnn: n_highway: expected at most 1,000"),
    ({"char_cnn__max_characters_per_token": 2**31 - 1}, "max_characters_per_token: expected at most 10,000"),
    ({"char_cnn__filters": [[1, 2**62]]}, "filters: expected counts of at most 1,048,576"),
    ({"char_cnn__embedding": {"dim": 2**40}}, "embedding: dim: expected at most 1,048,576"),
    ({"n_tokens_vocab": 2**70}, "n_tokens_vocab: expected at most 2,147,483,647")])
def test_options_beyond_every_model_are_refused(tmp_path, change, message):
    path = tmp_path / "options.json"
    path.write_text(json.dumps(tiny(**change)), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"^options_file {path}: .*{message}"):
        Options.from_file(path)


def test_weights_that_no_memory_holds_are_not_drawn():
    with pytest.raises(ConfigurationError, match="^options: expected a model whose weights fit into the .* GB of this"):
        random_weights(Options.from_dict(tiny(lstm__dim=1 << 20, lstm__projection_dim=1 << 20, lstm__n_layers=1000)))


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"lstm": ' + b"9" * 5000 + b"}"])
def test_json_that_python_cannot_read_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "options.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^options_file {path}: expected JSON, got something else"):
        Options.from_file(path)


@pytest.mark.parametrize("sentences", [None, 3, 3.5, True, object()])
def test_what_is_no_list_of_sentences_is_refused(model, sentences):
    message = f"expected a list of tokenized sentences, got {type(sentences).__name__}$"
    loaded, embedder = load(model), ElmoEmbedder(*paths(model))
    for call in (loaded.embed, embedder.embed_sentences, embedder.embed_batch):
        with pytest.raises(ValueError, match=message):
            call(sentences)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("sentences", [
    [None], [3], [[3]], [[None]], [["a", 3]], [["a"], [["b"]]], [[["a"]]], [[["a", "b"], ["c"]]], [[{"a": 1}]],
    [[b"a"]]])
def test_nested_lists_and_numbers_are_refused(model, backend, sentences):
    loaded, embedder = load(model, backend=backend), ElmoEmbedder(*paths(model), backend=backend)
    for call in (loaded.embed, lambda batch: list(embedder.embed_sentences(batch)), embedder.embed_batch):
        with pytest.raises(ValueError, match="^(token|batch.0.|sentences.0.): expected a (string|list of tokens), got"):
            call(sentences)
