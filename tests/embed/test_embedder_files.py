import io
import json
import os

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError, ElmoEmbedder
from elmo_fast.embed import stream
from tests.support.files import names, paths, write_model

SENTENCES = ["The cat sat .", "It rained", "The cat sat .", "caf\u00e9 \u732b", "x" * 60 + " </S>"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def embedder(model):
    return ElmoEmbedder(*paths(model))


@pytest.fixture
def expected(model):
    """Vectors of `SENTENCES` in batches of two, from another embedder."""
    return list(ElmoEmbedder(*paths(model)).embed_sentences([line.split() for line in SENTENCES], 2))


@pytest.fixture
def embed(embedder, tmp_path):
    """Embed text into a file, and return its path."""
    def into(text, *arguments, **options):
        content = text.encode() if isinstance(text, str) else text
        file = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
        embedder.embed_file(file, tmp_path / "o.hdf5", *arguments, progress=False, **options)
        return tmp_path / "o.hdf5"
    return into


def read(path):
    """Arrays by key, and the index or None."""
    arrays, index = {}, None
    with h5py.File(path) as file:
        def visit(name, item):
            if isinstance(item, h5py.Dataset) and name != "sentence_to_index":
                arrays[name] = item[...]
        file.visititems(visit)
        if "sentence_to_index" in file:
            index = json.loads(file["sentence_to_index"][0])
    return arrays, index


@pytest.mark.parametrize("output_format, form", [
    ("all", lambda vectors: vectors), ("top", lambda vectors: vectors[-1]),
    ("average", lambda vectors: np.average(vectors, axis=0)),
])
def test_formats(embed, expected, output_format, form):
    arrays, index = read(embed("\n".join(SENTENCES), output_format, 2))
    assert sorted(arrays) == ["0", "1", "2", "3", "4"]
    for key, vectors in enumerate(expected):
        assert arrays[str(key)].dtype == np.float32
        np.testing.assert_array_equal(arrays[str(key)], form(vectors))
    assert index == {SENTENCES[0]: "2", SENTENCES[1]: "1", SENTENCES[3]: "3", SENTENCES[4]: "4"}


def test_keys_and_index(embed, embedder, expected):
    lines = SENTENCES[:2] + SENTENCES[3:4]
    text = "\n".join(lines) + "\n"
    arrays, index = read(embed(text, batch_size=2, use_sentence_keys=True))
    assert index is None and set(arrays) == set(lines)
    np.testing.assert_array_equal(arrays[SENTENCES[1]], expected[1])
    embedder.elmo_bilm.reset_states()
    arrays, index = read(embed(text, batch_size=2, forget_sentences=True))
    assert index is None and sorted(arrays) == ["0", "1", "2"]
    np.testing.assert_array_equal(arrays["1"], expected[1])


def test_keys_count_from_the_first_line_with_carried_states(embedder, embed):
    arrays, _ = read(embed("a\nb\nc\n", "top", 2))
    assert sorted(arrays) == ["0", "1", "2"]
    assert not np.array_equal(embedder.embed_sentence(["a"])[-1], arrays["0"])


def test_a_blank_line_is_refused_before_any_work(embedder, embed, tmp_path, monkeypatch):
    monkeypatch.setattr(embedder.elmo_bilm, "encode", lambda _: pytest.fail("it was embedded"))
    with pytest.raises(ConfigurationError, match="^input file: .* got blank lines at indexes 1"):
        embed("a b\n\nc\n")
    assert names(tmp_path) == []


@pytest.mark.parametrize("output_format, shape", [("all", (3, 0, 8)), ("top", (0, 8)), ("average", (0, 8))])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_blank_lines_have_datasets_without_tokens(embed, output_format, shape, batch_size):
    arrays, index = read(embed("a b\n\n \t \nc\n", output_format, batch_size, allow_blank=True))
    assert {key: array.shape[-2] for key, array in arrays.items()} == {"0": 2, "1": 0, "2": 0, "3": 1}
    assert arrays["1"].shape == arrays["2"].shape == shape
    assert index == {"a b": "0", "": "2", "c": "3"}


@pytest.mark.parametrize("text", ["a b\r\nc\r\n", "\ufeffa b\nc", "a\u00a0b\nc\n", " a\t\tb \nc"])
def test_line_ends_and_whitespace_make_no_difference(embed, model, text):
    arrays, _ = read(embed(text))
    plain = ElmoEmbedder(*paths(model)).embed_batch([["a", "b"], ["c"]])
    np.testing.assert_array_equal(arrays["0"], plain[0])
    np.testing.assert_array_equal(arrays["1"], plain[1])


@pytest.mark.parametrize("content, message", [
    (b"", "expected one tokenized sentence a line, got an empty file"),
    (b"a\ncaf\xe9\n", "expected UTF-8 text, got undecodable bytes at line index 1"),
])
def test_a_bad_file_leaves_nothing(embed, tmp_path, content, message):
    with pytest.raises(ConfigurationError, match=f"^input file: {message}"):
        embed(content)
    assert names(tmp_path) == []


@pytest.mark.parametrize("input_file", ["sentences.txt", ["a b"], None])
def test_what_is_no_file_is_refused(embedder, tmp_path, input_file):
    with pytest.raises(ValueError, match="^input_file: expected a file opened as text, got "):
        embedder.embed_file(input_file, tmp_path / "o.hdf5")


def test_a_pipe_is_embedded(embedder, tmp_path, expected):
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as file:
        file.write("\n".join(SENTENCES))
    embedder.embed_file(os.fdopen(reader, encoding="utf-8"), tmp_path / "o.hdf5", batch_size=2, progress=False)
    arrays, _ = read(tmp_path / "o.hdf5")
    for key, vectors in enumerate(expected):
        np.testing.assert_array_equal(arrays[str(key)], vectors)


def test_the_input_is_closed(embedder, tmp_path):
    for text in ("a\n", "\n"):
        file = io.StringIO(text)
        try:
            embedder.embed_file(file, tmp_path / "o.hdf5", progress=False)
        except ConfigurationError:
            assert text == "\n"
        assert file.closed


@pytest.mark.parametrize("options, message", [
    ({"output_format": "bottom"}, "output_format: expected one of all, top, average, got 'bottom'"),
    ({"output_format": 1}, "output_format: expected one of all, top, average, got 1"),
    ({"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
    ({"batch_size": -3}, "batch_size: expected an integer of at least 1, got -3"),
    ({"batch_size": True}, "batch_size: expected an integer of at least 1, got True"),
    ({"batch_size": 2.0}, "batch_size: expected an integer of at least 1, got 2.0"),
])
def test_bad_arguments_leave_nothing(embed, tmp_path, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        embed("a\n", **options)
    assert names(tmp_path) == []


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_things_as_they_were(embedder, embed, tmp_path, monkeypatch, old, error):
    if old:
        (tmp_path / "o.hdf5").write_bytes(old)
    advance, calls = embedder.elmo_bilm.run, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise error("in the middle")
        return advance(*arguments)

    monkeypatch.setattr(embedder.elmo_bilm, "run", failing)
    monkeypatch.setattr(stream, "_ROWS_PER_CHUNK", 1)
    with pytest.raises(error, match="in the middle"):
        embed("\n".join(SENTENCES * 20), batch_size=2)
    assert len(calls) == 3
    assert names(tmp_path) == (["o.hdf5"] if old else [])
    assert not old or (tmp_path / "o.hdf5").read_bytes() == old
