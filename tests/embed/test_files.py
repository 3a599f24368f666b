import errno
import json
import os

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.text.corpus import make_vocabulary
from elmo_fast.train.checkpoint import copy_vocabulary, write_json
from elmo_fast.vectors.layouts.allennlp import hdf5_file
from elmo_fast.vectors.layouts.arrays import write_arrays
from tests.support.files import full_disk, names

VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_datasets_have_the_values_and_the_type_of_arrays(tmp_path):
    (tmp_path / "o.hdf5").write_text("old")
    with hdf5_file(tmp_path / "o.hdf5") as writer:
        writer.write("0", VECTORS)
        writer.write("1", VECTORS[:0])
        assert (tmp_path / "o.hdf5").read_text() == "old"
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert sorted(file) == ["0", "1"] and file["0"].dtype == np.float32
        assert file["0"][...].tolist() == VECTORS.tolist() and file["1"].shape == (0, 3)


@pytest.mark.parametrize("keys", [["a b"], ["caf\u00e9 \U0001f600"], ["1 / 2"], ["a/b", "a/c"], [".."], ["a ."],
                                  [". a"], ["http://a"], ["/a"], ["w " * 40_000 + "w"], ["sentence_to_index"]])
def test_sentences_as_keys_are_found_again(tmp_path, keys):
    with hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    with h5py.File(tmp_path / "o.hdf5") as file:
        assert all(file[key][...].tolist() == VECTORS.tolist() for key in keys)


@pytest.mark.parametrize("keys", [
    ["a", "a"], ["a/b", "a"], ["a//b", "a/b"], ["a", "/a"], ["x", "a/b/c", "a/b"], ["."], ["/"], [""], ["a/"],
    ["and/or/."], ["x\0y"], ["a", "a/b"], ["a/./b"]])
def test_a_key_that_is_taken_or_no_name_is_refused(tmp_path, keys):
    with pytest.raises(ConfigurationError) as error, hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    assert str(error.value).startswith("use_sentence_keys: expected sentences that are different and valid names in "
                                       f"HDF5, got {keys[-1]!r}")
    assert str(error.value).endswith("line numbers always work")
    assert names(tmp_path) == []


def test_an_absent_directory_is_refused_before_any_work(tmp_path):
    refusal = pytest.raises(FileNotFoundError, match="^output file: expected an existing directory, found none at")
    with refusal, hdf5_file(tmp_path / "no" / "o.hdf5"):
        pytest.fail("the body ran")


def test_a_full_disk_is_noticed_at_once_and_leaves_nothing(tmp_path):
    number = 0
    with full_disk(50_000), pytest.raises(OSError) as error, hdf5_file(tmp_path / "o.hdf5") as writer:
        for number in range(1000):
            writer.write(str(number), np.zeros((3, 7, 8)))
    assert number < 75 and error.value.filename == str(tmp_path / "o.hdf5") and names(tmp_path) == []


# ---- a full disk is reported with the name of the file that did not fit, and leaves nothing of it ----


def arrays(*shape):
    return ((f"name-{number}", np.zeros(shape, np.float32)) for number in range(6))


@pytest.mark.parametrize("name, write", [
    ("out.npz", lambda path: write_arrays(path, arrays(1000))),
    ("out.npz", lambda path: write_arrays(path, arrays(240))),  # the archive's directory does not fit
    ("out.npy", lambda path: write_arrays(path, arrays(1000))),
    ("out.h5", lambda path: write_arrays(path, arrays(1000))),
    ("out.json", lambda path: write_arrays(path.with_suffix(".npy"), ((f"{k:06000}", np.zeros(1)) for k in range(2)))),
    ("vocab.txt", lambda path: make_vocabulary(str(path.parent / "text"), path)),
    ("vocab.txt", lambda path: copy_vocabulary(str(path.parent / "text"), path.parent)),
    ("options.json", lambda path: write_json(path, {"text": "a" * 7000}))])
def test_a_full_disk_names_the_file(tmp_path, name, write):
    (tmp_path / "text").write_text("".join(f"word{number}\n" for number in range(1000)))
    with full_disk(), pytest.raises(OSError, match=f"File too large: '{tmp_path / name}'$") as error:
        write(tmp_path / name)
    assert error.value.errno == errno.EFBIG and names(tmp_path) == ["text"]


def test_arrays_come_back(tmp_path):
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    for rows in (values, values.T, values[:0], values.astype(np.float16)):
        write_arrays(tmp_path / "out.npy", ((str(number), row) for number, row in enumerate(rows)))
        array = np.load(tmp_path / "out.npy")
        assert len(array) == len(rows) and (not rows.size or (array.dtype == rows.dtype and (array == rows).all()))


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("renamed", [0, 1])
def test_vectors_are_never_stored_with_other_names(tmp_path, monkeypatch, is_old, renamed):
    """The run ends before the first or the second rename."""
    path, replace, renames = tmp_path / "out.npy", os.replace, []

    def replacing(*paths):
        if len(renames) == renamed:
            raise OSError("killed")
        renames.append(replace(*paths))

    if is_old:
        write_arrays(path, [("old", VECTORS)])
    with monkeypatch.context() as patched, pytest.raises(OSError, match="killed"):
        patched.setattr(os, "replace", replacing)
        write_arrays(path, [("new", VECTORS), ("other", VECTORS)])
    assert names(tmp_path) == (["out.json"] if is_old or renamed else [])
    write_arrays(path, [("new", VECTORS), ("other", VECTORS)])
    assert names(tmp_path) == ["out.json", "out.npy"] and json.loads((tmp_path / "out.json").read_text())[0] == "new"
