"""Files of vectors and indexes whose structure is wrong under right checksums: refused, with the file and the field."""

import json

import h5py
import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.files import seal
from elmo_fast.vectors.layouts.shards import MANIFEST, _sum
from elmo_fast.vectors.partial import _PROGRESS, PartialResult, _seal
from elmo_fast.vectors.spec import OutputSpec
from tests.robustness.structure import cut_seal, reseal
from tests.support.vectors import make_items, write

TEXTS = [["a", "b"], ["b", "c", "a"], []]


class _Exactly:
    """In place of a random generator: the seal that fits."""

    def choice(self, values):
        return values[0]


def replaced(file, name, value):
    del file[name]
    if value is None:
        file.create_group(name)
    else:
        file[name] = value


@pytest.fixture
def index(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
    places = np.array([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)])
    ContextIndex(TEXTS, places, vectors).save(tmp_path / "index.h5")
    return tmp_path / "index.h5"


@pytest.mark.parametrize("name, value, message", [
    ("places", np.zeros((5, 3), "i8"), r"places: expected .* of shape \[any, 2\]"),
    ("places", np.zeros(10, "i8"), "places: expected"),
    ("places", np.zeros((5, 2)), "places: expected signed integers"),
    ("places", None, "dataset places, found a group"),
    ("places", np.zeros((4, 2), "i8"), r"vectors: .* shape \[4, any\]"),
    ("vectors", np.zeros((5, 2, 2), "f4"), "vectors: expected"),
    ("vectors", np.zeros((5, 4), "i4"), "vectors: expected"),
    ("vectors", None, "dataset vectors, found a group"), ("vectors", np.zeros((5, 4)), "vectors: expected float32"),
    ("lines", np.zeros(2, "i8"), r"lines: .* shape \[3\]"), ("lines", np.zeros(3), "lines: expected signed integers"),
    ("token_bytes", np.zeros(3, "f4"), "token_bytes: expected unsigned"),
    ("token_ends", np.zeros((2, 2)), "token_ends"),
    ("token_ends", np.array([1, 0, 3, 4, 5]), "token_ends: expected strings"),
    ("text_ends", None, "text_ends, found a"),
    ("text_ends", np.array([2, 1, 5]), "text_ends: expected offsets that rise to 5"),
])
def test_an_index_of_other_shapes_and_types_is_refused(index, name, value, message):
    with h5py.File(index, "r+") as file:
        replaced(file, name, value)
    with pytest.raises(ConfigurationError, match=f"index .*index.h5: .*{message}"):
        ContextIndex.load(index)


@pytest.mark.parametrize("name, value, message", [
    ("state", "carry", "state: expected one of zero, warm"), ("state", 3, "attribute state: expected str"),
    ("layers", "all", "layers: expected one of top, average"), ("layers", np.zeros((2, 2)), "layers: expected"),
    ("layers", [np.nan], "layers: expected"), ("model", np.zeros(3), "attribute model: expected str"),
    ("version", "1", "attribute version: expected int"), ("format", [1, 2], "attribute format: expected str"),
])
def test_an_index_of_other_attributes_is_refused(index, name, value, message):
    with h5py.File(index, "r+") as file:
        file.attrs[name] = value
    with pytest.raises(ConfigurationError, match=f"index.h5: {message}"):
        ContextIndex.load(index)


def test_an_empty_index_is_read_whatever_type_its_lines_have(tmp_path):
    ContextIndex([], np.zeros((0, 2), np.int64), np.zeros((0, 4), np.float32), lines=[]).save(tmp_path / "index.h5")
    assert len(ContextIndex.load(tmp_path / "index.h5")) == 0
    with h5py.File(tmp_path / "index.h5", "r+") as file:
        replaced(file, "lines", np.zeros(0))
    assert len(ContextIndex.load(tmp_path / "index.h5")) == 0


@pytest.fixture
def packed(tmp_path):
    write("packed", tmp_path / "out.h5", OutputSpec(), make_items(OutputSpec(), count=6), fingerprint={"model": "a"})
    return tmp_path / "out.h5"


def open_all(path):
    with elmo_fast.open_embeddings(path) as found:
        return [(found[number], found.text(number), found.tokens(number)) for number in range(len(found))]


@pytest.mark.parametrize("name, change, message", [
    ("vectors", lambda values: values[:-1], "offsets: expected offsets that rise"),
    ("vectors", lambda values: values[:, :, 0], "vectors: expected 3 axes"),
    ("vectors", lambda _: None, "found a group"),
    ("vectors", lambda values: values.astype("f8"), "vectors: expected"),
    ("offsets", lambda values: values[::-1], "offsets: expected offsets that rise"),
    ("offsets", lambda values: values + 1, "offsets: expected"),
    ("offsets", lambda values: values * 1.0, "offsets: expected"),
    ("offsets", lambda values: values[[0, -1]], "same number of texts"),
    ("token_offsets", lambda values: values[:-1], "token_off"),
    ("keys", lambda values: values[:-1], "key_ends: expected"), ("key_ends", lambda _: None, "key_ends, found a group"),
    ("texts", lambda values: values.astype("f4"), "texts: expected unsigned"),
    ("text_ends", lambda values: -values, "text_ends: expected"),
])
def test_packed_vectors_of_other_structure_are_refused(packed, name, change, message):
    cut_seal(packed)
    with h5py.File(packed, "r+") as file:
        replaced(file, name, change(file[name][...]))
    reseal(packed, seal.PACKED, _Exactly())
    with pytest.raises(ConfigurationError, match=f"embeddings .*out.h5: .*{message}"):
        open_all(packed)


def test_packed_vectors_that_are_sealed_again_are_read(packed):
    expected = open_all(packed)
    cut_seal(packed)
    reseal(packed, seal.PACKED, _Exactly())
    for own, other in zip(open_all(packed), expected, strict=True):
        assert np.array_equal(own[0], other[0]) and own[1:] == other[1:]


@pytest.mark.parametrize("about", ["[]", "3", '{"form": {}}', "[" * 50_000, '{"form": 1, "form": 2}', 5,
                                   '{"form": {"dtype": "f", "pool": null, "layers": "all", "targets": false}}'])
def test_what_a_file_says_about_itself_is_checked(tmp_path, about):
    write("allennlp", tmp_path / "out.hdf5", OutputSpec(), make_items(OutputSpec(), count=3))
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        file.attrs["elmo_fast"] = about
    with pytest.raises(ConfigurationError, match="embeddings .*out.hdf5: "):
        elmo_fast.open_embeddings(tmp_path / "out.hdf5")


@pytest.mark.parametrize("value", ["[]", '{"a": 1}', "{", np.zeros(3), None])
def test_an_index_of_sentences_is_checked(tmp_path, value):
    write("allennlp", tmp_path / "out.hdf5", OutputSpec(), make_items(OutputSpec(), count=3))
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        replaced(file, "sentence_to_index", [value] if isinstance(value, str) else value)
    if isinstance(value, np.ndarray) or value is None:  # a key of that name
        value = elmo_fast.open_embeddings(tmp_path / "out.hdf5").keys
    else:
        with pytest.raises(ConfigurationError, match="out.hdf5: sentence_to_index: expected"):
            elmo_fast.open_embeddings(tmp_path / "out.hdf5")


@pytest.mark.parametrize("values", [np.zeros(3, "i4"), np.array(1.0), np.array(["a"]), np.zeros(4, "c8")])
def test_arrays_of_other_types_are_refused(tmp_path, values):
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "a.npz", a=values.astype("i4") if values.dtype.kind == "f" else values)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(ConfigurationError, match=f"embeddings .*{name}: expected arrays of NumPy"):
            elmo_fast.open_embeddings(tmp_path / name)[0]


@pytest.mark.parametrize("names", ["3", "[[1]]", "[" * 50_000, '{"a": 1}', '["a", "a", "a", "a"]'])
def test_names_of_rows_are_checked(tmp_path, names):
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    (tmp_path / "a.json").write_text(names)
    with pytest.raises(ConfigurationError, match=r"embeddings .*a\.(json|npy)"):
        elmo_fast.open_embeddings(tmp_path / "a.npy")


@pytest.mark.parametrize("change", [
    {"layout": "npz"}, {"shards": 3}, {"shards": [{"file": "../out.h5", "texts": 1, "bytes": 1, "crc32": 1}]},
    {"shards": [{"file": "/etc/passwd", "texts": 1, "bytes": 1, "crc32": 1}]}, {"shards": [{"file": "a"}]},
    {"form": []}, {"format_version": "1"}, {"format_version": None}, {"fingerprint": 3},
])
def test_a_manifest_is_checked(tmp_path, change):
    write("packed", tmp_path / "shards", OutputSpec(), make_items(OutputSpec(), count=6), cuts=(3,))
    manifest = tmp_path / "shards" / MANIFEST
    content = {**json.loads(manifest.read_text()), **change}
    manifest.write_text(json.dumps({**content, "checksum": _sum(content)}))
    with pytest.raises(ConfigurationError, match="embeddings .*shards"):
        elmo_fast.open_embeddings(tmp_path / "shards")


@pytest.mark.parametrize("change", [
    {"commits": 3}, {"commits": [{"texts": 1}]}, {"head": 5}, {"commits": [{"texts": "x", "digest": "", "files": []}]},
    {"commits": [{"texts": 1, "digest": "a", "files": [{"name": "../x", "size": 1, "checksum": 1}]}]},
])
def test_the_progress_of_a_run_is_checked(tmp_path, change):
    folder = tmp_path / "out.h5.part"
    folder.mkdir()
    content = json.dumps({"settings": {}, "head": None, "commits": [], **change}).encode()
    (folder / _PROGRESS).write_bytes(b"%b\n%b" % (content, _seal(content)))
    with pytest.raises(ConfigurationError, match="partial result .*progress.json: expected"):
        PartialResult(tmp_path / "out.h5", {}, tmp_path).find()


def test_strings_and_positions_of_packed_vectors_are_checked(tmp_path):
    form = OutputSpec(targets=frozenset({"wörd1", "wörd2"}))
    for name, message in (("texts", "texts: expected strings in UTF-8"),
                          ("positions", "positions: expected positions of")):
        path = tmp_path / f"{name}.h5"
        write("packed", path, form, make_items(form, count=6), fingerprint={"model": "a"})
        cut_seal(path)
        with h5py.File(path, "r+") as file:
            values = file[name][...]
            replaced(file, name, values + 90 if name == "positions" else np.full_like(values, 255))
        reseal(path, seal.PACKED, _Exactly())
        with pytest.raises(ConfigurationError, match=f"{name}.h5: {message}"):
            open_all(path)
            elmo_fast.open_embeddings(path).occurrences("wörd1")
