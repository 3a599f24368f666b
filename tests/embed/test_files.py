import contextlib
import errno
import json
import os

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.text.corpus import make_vocabulary
from elmo_fast.train.checkpoint import copy_vocabulary, write_json
from elmo_fast.vectors.layouts import allennlp
from elmo_fast.vectors.layouts.allennlp import AllennlpSource, hdf5_file
from elmo_fast.vectors.layouts.arrays import write_arrays
from elmo_fast.vectors.layouts.sentence_index import Index
from tests.support.files import full_disk, names

VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_datasets_are_float32_and_the_index_is_one_json_string(tmp_path):
    (tmp_path / "o.hdf5").write_text("old")
    with hdf5_file(tmp_path / "o.hdf5") as writer, Index(tmp_path, tmp_path / "o.hdf5") as index:
        writer.write("0", VECTORS)
        writer.write("1", VECTORS.astype(np.float64)[:0])
        index.add("caf\u00e9 .", "0")
        index.add("a / b", "1")
        writer.write_index(index)
        assert (tmp_path / "o.hdf5").read_text() == "old"
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert sorted(file) == ["0", "1", "sentence_to_index"]
        assert file["0"][...].tolist() == VECTORS.tolist()
        assert file["1"].shape == (0, 3) and file["0"].dtype == file["1"].dtype == np.float32
        assert file["sentence_to_index"].shape == (1,)
        assert json.loads(file["sentence_to_index"][0]) == {"caf\u00e9 .": "0", "a / b": "1"}


@pytest.mark.parametrize("keys", [["a b"], ["caf\u00e9 \U0001f600"], ["1 / 2"], ["a/b", "a/c"], [".."], ["a ."],
                                  [". a"], ["http://a"], ["/a"], ["w " * 40_000 + "w"], ["sentence_to_index"]])
def test_sentences_as_keys_are_found_again(tmp_path, keys):
    with hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert all(file[key][...].tolist() == VECTORS.tolist() for key in keys)


@pytest.mark.parametrize("expected, keys", [
    *(("different sentences", keys) for keys in (
        ["a", "a"], ["a/b", "a"], ["a//b", "a/b"], ["a", "/a"], ["x", "a/b/c", "a/b"])),
    *(("sentences that are valid names in HDF5", keys) for keys in (
        ["."], ["/"], [""], ["a/"], ["and/or/."], ["x\0y"], ["a", "a/b"], ["a/./b"]))])
def test_a_key_that_is_taken_or_no_name_is_refused(tmp_path, expected, keys):
    with pytest.raises(ConfigurationError) as caught, hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    assert str(caught.value).startswith(f"use_sentence_keys: expected {expected}, got {keys[-1]!r}")
    assert str(caught.value).endswith("line numbers always work")
    assert names(tmp_path) == []


def test_a_place_for_no_file_is_refused_before_any_work(tmp_path):
    refused = pytest.raises(FileNotFoundError, match="^output file: expected an existing directory, found none at")
    with refused, hdf5_file(tmp_path / "no" / "o.hdf5"):
        pytest.fail("the body ran")


def test_a_full_disk_is_found_at_once_and_leaves_nothing(tmp_path):
    written = 0
    with full_disk(50_000), pytest.raises(OSError) as caught, hdf5_file(tmp_path / "o.hdf5") as writer:
        for written in range(1000):
            writer.write(str(written), np.zeros((3, 7, 8)))
    assert written < 75 and caught.value.filename == str(tmp_path / "o.hdf5") and names(tmp_path) == []


def test_the_index_of_many_sentences_is_kept_on_disk(tmp_path):
    texts = {f"{number} \udcff \u00e9 \"": str(number) for number in range(30_000)}
    with hdf5_file(tmp_path / "o.hdf5") as writer, Index(tmp_path / "a", "o") as index, Index(
            tmp_path / "b", "o") as joined:
        for text, key in texts.items():
            index.add(text, key)
        assert len(names(tmp_path)) == 4  # with o.hdf5's lock and part
        joined.extend(b"{}")
        joined.extend(b"".join(index.json()))
        joined.extend(b'{"one": "more"}')
        writer.write_index(joined)
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert json.loads(file["sentence_to_index"][0]) == {**texts, "one": "more"}
    with hdf5_file(tmp_path / "o.hdf5") as writer, Index(tmp_path / "a", "o") as index:
        writer.write_index(index)
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert file["sentence_to_index"][0] == b"{}"


def test_a_full_disk_under_the_index_names_the_output(tmp_path):
    with full_disk(50_000), pytest.raises(OSError, match="File too large: 'o'"), Index(tmp_path / "a", "o") as index:
        for number in range(10_000):
            index.add("a sentence", str(number))
    assert names(tmp_path) == []


def test_an_index_too_long_for_a_string_is_left_out_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(allennlp, "_MOST_JSON", 18)
    with hdf5_file(tmp_path / "o.hdf5") as writer, Index(tmp_path / "a", "o") as index:
        index.add("a sentence", "0")
        writer.write("0", VECTORS)
        writer.write_index(index)
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert list(file) == ["0"]
    assert "o.hdf5 has no sentence_to_index: HDF5 stores strings of at most 2 GiB" in caplog.text


@pytest.mark.long
def test_the_cache_of_records_stays_small(tmp_path):
    with hdf5_file(tmp_path / "o.hdf5") as writer:
        for number in range(20_000):
            writer.write(str(number), VECTORS)
        assert writer._file.id.get_mdc_size()[2] < 2 << 20
    with contextlib.closing(AllennlpSource(tmp_path / "o.hdf5")) as source:
        assert (source[19_999] == VECTORS).all() and source._file.id.get_mdc_size()[2] < 2 << 20


# ---- a full disk is reported with the name of the file that did not fit, and leaves nothing of it ----


def arrays(*shape):
    return ((f"name-{number}", np.zeros(shape, np.float32)) for number in range(6))


@pytest.mark.parametrize("name, write", [
    ("out.npz", lambda path: write_arrays(path, arrays(1000))),
    ("out.npz", lambda path: write_arrays(path, arrays(240))),  # the archive's directory is too much
    ("out.npy", lambda path: write_arrays(path, arrays(1000))),
    ("out.h5", lambda path: write_arrays(path, arrays(1000))),
    ("out.json", lambda path: write_arrays(path.with_suffix(".npy"), ((f"{k:06000}", np.zeros(1)) for k in range(2)))),
    ("vocab.txt", lambda path: make_vocabulary(str(path.parent / "text"), path)),
    ("vocab.txt", lambda path: copy_vocabulary(str(path.parent / "text"), path.parent)),
    ("options.json", lambda path: write_json(path, {"text": "a" * 7000}))])
def test_a_full_disk_names_the_file(tmp_path, name, write):
    (tmp_path / "text").write_text("".join(f"word{number}\n" for number in range(1000)))
    with full_disk(), pytest.raises(OSError, match=f"File too large: '{tmp_path / name}'$") as caught:
        write(tmp_path / name)
    assert caught.value.errno == errno.EFBIG and names(tmp_path) == ["text"]


def test_arrays_come_back(tmp_path):
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    for rows in (values, values.T, values[:0], values.astype(np.float16)):
        write_arrays(tmp_path / "out.npy", ((str(number), row) for number, row in enumerate(rows)))
        found = np.load(tmp_path / "out.npy")
        assert len(found) == len(rows) and (not rows.size or (found.dtype == rows.dtype and (found == rows).all()))


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("renamed", [0, 1])
def test_vectors_never_stand_beside_other_names(tmp_path, monkeypatch, is_old, renamed):
    """A run that ends before the first rename or the second; without old vectors new ones have their names."""
    path, replace, done = tmp_path / "out.npy", os.replace, []

    def replacing(*paths):
        if len(done) == renamed:
            raise OSError("killed")
        done.append(replace(*paths))

    if is_old:
        write_arrays(path, [("old", VECTORS)])
    with monkeypatch.context() as patched, pytest.raises(OSError, match="killed"):
        patched.setattr(os, "replace", replacing)
        write_arrays(path, [("new", VECTORS), ("other", VECTORS)])
    assert names(tmp_path) == (["out.npy"] if is_old else ["out.json"] * renamed)
    assert not is_old or len(np.load(path)) == 1 + renamed
    write_arrays(path, [("new", VECTORS), ("other", VECTORS)])
    assert names(tmp_path) == ["out.json", "out.npy"] and json.loads((tmp_path / "out.json").read_text())[0] == "new"


def test_vectors_with_the_same_names_never_lack_them(tmp_path, monkeypatch):
    """A kill before the only rename leaves the old result whole."""
    path = tmp_path / "out.npy"
    write_arrays(path, [("a", VECTORS), ("b", VECTORS)])

    def replacing(*paths):
        assert json.loads((tmp_path / "out.json").read_text()) == ["a", "b"]
        raise OSError("killed")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="killed"):
        patched.setattr(os, "replace", replacing)
        write_arrays(path, [("a", 2 * VECTORS), ("b", VECTORS)])
    assert names(tmp_path) == ["out.json", "out.npy"] and (np.load(path)[0] == VECTORS).all()
    write_arrays(path, [("a", 2 * VECTORS), ("b", VECTORS)])
    assert names(tmp_path) == ["out.json", "out.npy"] and (np.load(path)[0] == 2 * VECTORS).all()
