import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.vectors.layouts import check_output
from elmo_fast.vectors.layouts.table import is_directory, layout_of
from elmo_fast.vectors.layouts.text_vectors import TextVectors, narrow
from elmo_fast.vectors.spec import OutputSpec
from tests.support.files import names
from tests.support.vectors import LIBRARY, kinds, make_items, write


@pytest.mark.parametrize("name, layout, expected", [
    ("o.h5", None, "allennlp"), ("o.hdf5", None, "allennlp"), ("o", None, "allennlp"),
    ("o.npz", None, "npz"), ("o.npy", None, "npy"), ("o.parquet", None, "parquet"), ("o.arrow", None, "arrow"),
    ("o.feather", None, "arrow"), ("o.hdf5", "allennlp", "allennlp"), ("o.dump", "allennlp", "allennlp"),
    ("o", "parquet", "parquet"), ("o/", "arrow", "arrow"), ("o.0/", "parquet", "parquet")])
def test_the_layout_of_a_name(name, layout, expected):
    assert layout_of(name, layout) == expected
    if not name.endswith("/"):
        assert layout_of(Path(name), expected) == expected


@pytest.mark.parametrize("name", ["o.csv", "o.pt", "o.2026-01", "o.h5.gz"])
def test_an_unknown_suffix_is_refused(name):
    with pytest.raises(ConfigurationError, match=rf"^output: expected a name that ends in .h5, .*, got {name}$"):
        layout_of(name)


@pytest.mark.parametrize("name, layout, message", [
    ("o/", None, "layout: expected parquet or arrow for a directory, got none for o/"),
    ("o.npz", "allennlp", "layout: expected a file that ends in .h5 or .hdf5 for allennlp, got o.npz"),
    ("o.h5", "parquet", "layout: expected a file that ends in .parquet for parquet, got o.h5"),
    ("o.txt", "arrow", "layout: expected a file that ends in .arrow or .feather"),
    ("o", "npz", "layout: expected a file that ends in .npz"), ("o.h5", "zarr", "layout: expected one of allennlp")])
def test_a_name_of_another_layout_is_refused(name, layout, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        layout_of(name, layout)


def test_directories_have_no_suffix():
    assert [is_directory(*args) for args in (("parquet", "a"), ("parquet", "a.b/"), ("arrow", Path("a")))] == [True] * 3
    assert [is_directory(*args) for args in (("arrow", "a.arrow"), ("allennlp", "a"), ("npz", "a.npz"))] == [False] * 3


@pytest.mark.parametrize("layout, name, form, error, message", [
    ("npy", "o.npy", OutputSpec(), ConfigurationError, "output: expected .h5 or .npz for arrays of different lengths"),
    ("npy", "o.npy", OutputSpec("all", "mean"), ConfigurationError,
     "output: expected .h5 or .npz for arrays of different"),
    ("allennlp", "no/o.h5", OutputSpec(), FileNotFoundError, "output: expected an existing directory, found none at"),
    pytest.param("parquet", "no/o", OutputSpec(), FileNotFoundError,
                 "output: expected an existing directory, found none at", marks=LIBRARY),
    pytest.param("parquet", "there", OutputSpec(), ConfigurationError,
                 "output: expected a new directory, found .*there there already", marks=LIBRARY),
    ("allennlp", "there", OutputSpec(), IsADirectoryError, "output: expected a file's path, got the directory")])
def test_an_unusable_output_path_is_refused_before_any_work(tmp_path, layout, name, form, error, message):
    (tmp_path / "there").mkdir()
    with pytest.raises(error, match=f"^{message}"):
        check_output(layout, tmp_path / name, form)
    assert names(tmp_path) == ["there"]


@pytest.mark.parametrize("layout, name", kinds(without=["out.npy"]))
@pytest.mark.parametrize("value", [65520.0, -70000.0, np.inf, -np.inf])
def test_values_beyond_float16_are_refused_with_the_number_of_the_text(tmp_path, layout, name, value):
    items = make_items(OutputSpec(), longest=3)
    items[23] = TextVectors("23", "a", ["a", "b"], None, np.full((3, 2, 8), 1.5, np.float32))
    items[23].vectors[1, 1, 2] = value
    with pytest.raises(ConfigurationError, match="^dtype: expected vectors up to 65504 for float16, .* in text 23;"):
        write(layout, tmp_path / name, OutputSpec(dtype="float16"), items, [10])


def test_float16_rounds_as_numpy_does_and_nan_stays():
    values = np.array([0.1, -3e-8, 65504, -65504, np.nan, 1 / 3, 1e-7], np.float32)
    actual, expected = narrow(values, np.dtype(np.float16)), values.astype(np.float16)
    np.testing.assert_array_equal(actual, expected)  # NaN counts as equal, whatever its bits
    assert actual.dtype == np.float16
    assert narrow(values, np.dtype(np.float32)) is not None and narrow(values[:0], np.dtype(np.float16)).size == 0


@pytest.mark.parametrize("layout, name", [("allennlp", "o.h5"), ("npz", "o.npz")])
def test_values_that_a_gpu_rounded_to_infinity_are_refused(tmp_path, layout, name):
    form = OutputSpec("top", dtype="float16")
    items = [item._replace(vectors=item.vectors.astype(np.float16)) for item in make_items(form, 3)]
    items[1].vectors[0, 1] = np.inf
    with pytest.raises(ConfigurationError, match=f"dtype: .* for float16, found inf in text {items[1].key}"):
        write(layout, tmp_path / name, form, items)


def test_sentences_and_their_numbers_in_joined_files(tmp_path):
    items = [TextVectors(str(number), text, text.split(), None, np.zeros((3, len(text.split()), 8), np.float32))
             for number, text in enumerate(["a b", "c", "a b", "d / e"])]
    with h5py.File(write("allennlp", tmp_path / "o.h5", OutputSpec(), items, [1, 3])) as file:
        assert json.loads(file["sentence_to_index"][0]) == {"a b": "2", "c": "1", "d / e": "3"}
    write("allennlp", tmp_path / "o.h5", OutputSpec(), items[1:], [1], use_sentence_keys=True)
    with h5py.File(tmp_path / "o.h5") as file:
        assert "sentence_to_index" not in file and file["d / e"].shape == (3, 3, 8)
    with pytest.raises(ConfigurationError, match="^use_sentence_keys: expected sentences that are diff.* got 'a b'"):
        write("allennlp", tmp_path / "o.h5", OutputSpec(), items, [2], use_sentence_keys=True)


@pytest.mark.parametrize("layout, name, keys, message", [
    ("allennlp", "o.h5", ["a", "a"], "output: expected identifiers that are different .*, got 'a'"),
    ("allennlp", "o.h5", ["a\0b"], "output: expected identifiers that are different .*, got 'a.x00b'"),
    ("allennlp", "o.h5", ["a", "a/b"], "output: expected identifiers that are different .*, got 'a/b'"),
    ("allennlp", "o.h5", ["sentence_to_index"], "output: expected keys other than sentence_to_index"),
    ("npz", "o.npz", ["a", "a"], "output: expected different identifiers .* for .npz, got 'a'"),
    ("npz", "o.npz", ["a\0b"], "output: expected different identifiers without NUL"),
    ("npz", "o.npz", ["a" * 65532], "output: expected .* UTF-8 of at most 65,531 bytes, for .npz, got 'a"),
    ("npz", "o.npz", ["\ud800"], "output: expected .* which are UTF-8"),
    ("allennlp", "o.h5", ["a/" * 257 + "b"], "output: expected identifiers that are different .*, got 'a/a"),
    pytest.param("parquet", "o.parquet", ["\ud800"], "output: expected texts in UTF-8 for parquet",
                 marks=LIBRARY)])
def test_keys_that_a_layout_cannot_store_are_refused(tmp_path, layout, name, keys, message):
    items = [item._replace(key=key) for key, item in zip(keys, make_items(OutputSpec(), len(keys)))]
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        write(layout, tmp_path / name, OutputSpec(), items)


@pytest.mark.parametrize("arguments, message", [
    (dict(pool="sum"), "pool: expected None or one of mean, max, first_last, got 'sum'"),
    (dict(dtype="float64"), "dtype: expected one of float32, float16, got 'float64'"),
    (dict(targets="word"), "targets: expected words, got 'word'"), (dict(targets=[3]), "targets: expected words"),
    (dict(targets=[]), "targets: expected words"), (dict(targets=3), "targets: expected words, got 3"),
    (dict(targets={"a"}, pool="mean"), "pool: expected None with targets"),
    (dict(layers="last"), "layers: expected one of all, top, average, the number of a layer or 3 numbers, got 'last'"),
    (dict(layers=[1, 2]), r"layers: expected 3 numbers, one for each layer, got shape \(2,\)"),
    (dict(layers=3), "layers: expected the number of a layer, 0 to 2, got 3"),
    (dict(layers=-1), "layers: expected the number of a layer, 0 to 2, got -1"),
    (dict(layers=[[1, 2, 3]]), r"layers: expected 3 numbers, one for each layer, got shape \(1, 3\)")])
def test_a_form_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        OutputSpec(**arguments).check(3)


def test_a_form_selects_layers_and_positions():
    vectors, tokens = np.arange(24, dtype=np.float32).reshape(3, 4, 2), ["a", "b", "a", "c"]
    assert OutputSpec("top").apply(vectors, tokens).vectors.base is None
    selected = OutputSpec(targets=["a", "c"]).apply(vectors, tokens)
    assert selected.positions.tolist() == [0, 2, 3] and (selected.vectors == vectors[:, [0, 2, 3]]).all()
    selected = OutputSpec("average", targets=["z"]).apply(vectors, tokens)
    assert selected.positions.tolist() == [] and selected.vectors.shape == (0, 2)
    assert OutputSpec([1, 0, 0], "first_last").apply(vectors, tokens).vectors.tolist() == [6, 1]
    for layers, zeros in (("top", [0, 0]), ("all", [[0, 0]] * 3)):
        assert OutputSpec(layers, "max").apply(vectors[:, :0], []).vectors.tolist() == zeros
    for layer in range(3):
        selected = OutputSpec(np.int64(layer)).check(3).apply(vectors, tokens).vectors
        assert selected.base is None and (selected == vectors[layer]).all()
