"""Files of vectors and indexes with valid checksums and a wrong structure are refused, with the file and the field."""

import struct
import zipfile

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
    *(("places", np.array([place] * 5), "places: expected occurrences in the texts")
      for place in ([99, 0], [0, 3], [-1, 0])),
    ("vectors", None, "dataset vectors, found a group"), ("vectors", np.zeros((5, 4)), "vectors: expected float32"),
    ("lines", np.zeros(2, "i8"), r"lines: .* shape \[3\]"), ("lines", np.zeros(3), "lines: expected signed integers"),
    ("token_ends", np.array([1, 0, 3, 4, 5]), "token_ends: expected strings"),
    *(("text_ends", np.array(ends), "text_ends: expected offsets that rise to 5") for ends in ([2, 1, 5], [10**6] * 3)),
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


def test_arrays_of_the_same_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("0.npy", b"")
        archive.writestr("0", b"")  # of the same name, for NumPy
    with pytest.raises(ConfigurationError, match="a.npz: expected different names of arrays, found one twice"):
        elmo_fast.open_embeddings(tmp_path / "a.npz")


@pytest.mark.parametrize("names", ["3", "[[1]]", "[" * 50_000, '{"a": 1}', '["a", "a", "a", "a"]'])
def test_names_of_rows_are_checked(tmp_path, names):
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    (tmp_path / "a.json").write_text(names)
    with pytest.raises(ConfigurationError, match=r"embeddings .*a\.(json|npy)"):
        elmo_fast.open_embeddings(tmp_path / "a.npy")


HEADERS = [b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 32), ", b"{'descr': '<f4', 'shape': (3,)", b"{" * 50,
           b"'''", b"(", b"(" * 115, b"-" * 110 + b"1", b"[]", b"{'descr': [('a', '<f4', (1 << 40,))]}", b"\xff\0",
           b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", b"{'shape': (10**30,)}", b"__import__('os')",
           b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1099511627776), }",
           b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 32), }"]


@pytest.mark.parametrize("header", HEADERS)
def test_any_header_of_an_array_is_read_or_refused_by_file(tmp_path, header):
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117) + b"\n" + bytes(3 * 32 * 4)
    (tmp_path / "a.npy").write_bytes(array)
    (tmp_path / "a.json").write_text('["a", "b", "c"]')
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("0.npy", array)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(ConfigurationError, match=f"^embeddings .*{name}: expected arrays of NumPy") as error:
            elmo_fast.open_embeddings(tmp_path / name)[0]
        assert "\n" not in str(error.value)


def with_a_null(column, place):
    """The rows of a column with a null in the second text, or in its values: a token, a vector, a layer or a number."""
    rows = column.to_pylist()
    holder, at = rows, 1
    for _ in range(place):
        holder, at = holder[at], -1
    holder[at] = None
    return rows


@pytest.mark.parametrize("layout", ["parquet", "arrow"])
@pytest.mark.parametrize("name, place", [("key", 0), ("text", 0), ("tokens", 0), ("tokens", 1), ("vectors", 0),
                                         ("vectors", 1), ("vectors", 2), ("vectors", 3), ("positions", 0),
                                         ("positions", 1)])
def test_nulls_in_columns_are_refused(tmp_path, layout, name, place):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet  # noqa: F811

    form = OutputSpec(targets=frozenset(["wörd1", "wörd2", "wörd3"]))
    path = write(layout, tmp_path / f"out.{layout}", form, make_items(form, count=3))
    is_parquet = layout == "parquet"
    table = pyarrow.parquet.read_table(path) if is_parquet else pyarrow.ipc.open_file(path).read_all()
    number = table.schema.get_field_index(name)
    field = table.schema.field(number)
    table = table.set_column(number, field, pyarrow.array(with_a_null(table.column(number), place), field.type))
    if is_parquet:
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(ConfigurationError, match=f"^embeddings .*out.{layout}: .*column {name}: 1 nulls"):
        embeddings = elmo_fast.open_embeddings(path)
        print(embeddings.keys, embeddings[0])
