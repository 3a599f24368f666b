"""`ElmoEmbedder`: batches and files; tests/embed/test_stream.py has its streams."""

import io
import json
import os

import numpy as np
import pytest
import torch

from elmo_fast import ElmoEmbedder
from tests.support.files import names, read_hdf5
from tests.support.models import bilm

BACKENDS = ["reference", "torch", "auto"]
LINES = ["The cat sat .", "", "The cat sat .", "caf\u00e9 \u732b", "x" * 60 + " </S>", " \t "]


def embedder(**arguments):
    return ElmoEmbedder.from_bilm(bilm(**arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_arrays_are_float32(dtype):
    assert ElmoEmbedder.from_bilm(bilm().to(dtype)).embed_sentence(["a"]).dtype == np.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lone_empty_sentence_leaves_the_states_alone(backend):
    plain, embedded = embedder(backend=backend), embedder(backend=backend)
    for each in (plain, embedded):
        assert each.embed_sentence(["first"]).shape == (3, 1, 22)
    assert embedded.embed_sentence([]).shape == (3, 0, 22) and embedded.embed_batch([]) == []
    np.testing.assert_array_equal(plain.embed_sentence(["again"]), embedded.embed_sentence(["again"]))
    assert [each.shape for each in embedded.embed_batch([[], ["a"], []])] == [(3, 0, 22), (3, 1, 22), (3, 0, 22)]
    assert abs(plain.embed_sentence(["again"]) - embedded.embed_sentence(["again"])).max() > 1e-3


@pytest.fixture
def embed(tmp_path):
    """Embed a text or an open file into a file, two lines per batch: its arrays by key, and the index or None."""
    def into(source, ours=None, **arguments):
        file = io.TextIOWrapper(io.BytesIO(source.encode()), encoding="utf-8") if isinstance(source, str) else source
        arguments = {"batch_size": 2, "progress": False, **arguments}
        (ours or embedder()).embed_file(file, tmp_path / "o.hdf5", **arguments)
        assert file.closed
        arrays = read_hdf5(tmp_path / "o.hdf5")
        index = arrays.pop("sentence_to_index", None)
        return arrays, None if index is None else json.loads(index[0])
    return into


def pipe(text):
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as file:
        file.write(text)
    return os.fdopen(reader, encoding="utf-8")


@pytest.mark.parametrize("output_format, form", [
    ("all", lambda vectors: vectors), ("top", lambda vectors: vectors[-1]),
    ("average", lambda vectors: vectors.sum(axis=0) / np.float32(3)),
])
@pytest.mark.parametrize("source, batch_size", [(str, 1), (pipe, 2)])
def test_formats(embed, source, output_format, form, batch_size):
    arrays, index = embed(source("\n".join(LINES)), output_format=output_format, batch_size=batch_size,
                          allow_blank=True)
    assert sorted(arrays) == ["0", "1", "2", "3", "4", "5"]
    for key, vectors in enumerate(embedder().embed_sentences([line.split() for line in LINES], batch_size)):
        assert arrays[str(key)].dtype == np.float32
        np.testing.assert_array_equal(arrays[str(key)], form(vectors), strict=True)
    assert index == {LINES[0]: "2", "": "5", LINES[3]: "3", LINES[4]: "4"}


def test_keys_index_and_carried_states(embed):
    ours, lines = embedder(), ["It rained", *LINES[2:4]]
    expected = embed("\n".join(lines))[0]
    arrays, index = embed("\n".join(lines), ours, use_sentence_keys=True)
    assert index is None and set(arrays) == set(lines)
    np.testing.assert_array_equal(arrays[lines[1]], expected["1"])
    assert not np.array_equal(ours.embed_sentence(lines[0].split()), expected["0"])
    arrays, index = embed("\n".join(lines), forget_sentences=True)
    assert index is None and sorted(arrays) == ["0", "1", "2"]
    np.testing.assert_array_equal(arrays["1"], expected["1"])


@pytest.mark.parametrize("content, options, message", [
    (b"a b\n\nc\n", {}, "input file: expected a sentence on every line, got none on line 2"),
    *((b"a\n", {"output_format": form}, f"output_format: expected one of all, top, average, got {form!r}$")
      for form in ("bottom", 1)),
    *((b"a\n", {"batch_size": size}, f"batch_size: expected an integer of at least 1, got {size!r}$")
      for size in (0, -3, True, 2.0)),
])
def test_a_bad_file_or_argument_leaves_nothing(tmp_path, monkeypatch, content, options, message):
    ours, file = embedder(), io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")
    monkeypatch.setattr(ours.elmo_bilm._elmo_lstm, "write", lambda *_: pytest.fail("it was embedded"))
    with pytest.raises(ValueError, match=f"^{message}"):
        ours.embed_file(file, tmp_path / "o.hdf5", progress=False, **options)
    assert names(tmp_path) == [] and (file.closed or "output_format" in options)
