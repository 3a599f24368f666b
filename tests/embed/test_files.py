import json

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.embed.layouts.allennlp import hdf5_file
from tests.support.files import full_disk, names

VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_datasets_are_float32_and_the_index_is_one_json_string(tmp_path):
    (tmp_path / "o.hdf5").write_text("old")
    with hdf5_file(tmp_path / "o.hdf5") as writer:
        writer.write("0", VECTORS)
        writer.write("1", VECTORS.astype(np.float64)[:0])
        writer.write_index({"caf\u00e9 .": "0", "a / b": "1"})
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
    *(("sentences that HDF5 takes as names", keys) for keys in (
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
