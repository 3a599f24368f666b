"""Files of vectors and indexes with valid checksums and a wrong structure are refused, with the file and the field."""

import h5py
import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError
from elmo_fast.explore.contexts import ContextIndex
from elmo_fast.vectors.spec import OutputSpec
from tests.support.vectors import make_items, write

TEXTS = [["a", "b"], ["b", "c", "a"], []]


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
    ("places", None, "dataset places, found a group"),
    ("places", np.zeros((4, 2), "i8"), r"vectors: .* shape \[4, any\]"),
    ("vectors", None, "dataset vectors, found a group"), ("vectors", np.zeros((5, 4)), "vectors: expected float32"),
    ("lines", np.zeros(2, "i8"), r"lines: .* shape \[3\]"), ("lines", np.zeros(3), "lines: expected signed integers"),
    ("token_ends", np.array([1, 0, 3, 4, 5]), "token_ends: expected strings"),
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


@pytest.mark.parametrize("about", ["[]", "3", '{"form": {}}', "[" * 50_000, '{"form": 1, "form": 2}', 5,
                                   '{"form": {"dtype": "f", "pool": null, "layers": "all", "targets": false}}'])
def test_the_attributes_of_a_file_are_checked(tmp_path, about):
    write("allennlp", tmp_path / "out.hdf5", OutputSpec(), make_items(OutputSpec(), count=3))
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        file.attrs["elmo_fast"] = about
    with pytest.raises(ConfigurationError, match="embeddings .*out.hdf5: "):
        elmo_fast.open_embeddings(tmp_path / "out.hdf5")


@pytest.mark.parametrize("value", ["[]", '{"a": 1}', "{"])
def test_an_index_of_sentences_is_checked(tmp_path, value):
    write("allennlp", tmp_path / "out.hdf5", OutputSpec(), make_items(OutputSpec(), count=3))
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        replaced(file, "sentence_to_index", [value])
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
