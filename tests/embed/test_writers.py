import json
import os

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.embed.files import hdf5_file
from tests.support.files import names, start

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


@pytest.mark.parametrize("keys", [["a", "a"], ["a/b", "a"], ["a//b", "a/b"], ["a", "/a"], ["x", "a/b/c", "a/b"]])
def test_the_same_key_twice_is_refused(tmp_path, keys):
    message = f"^use_sentence_keys: expected different sentences, got '{keys[-1]}'"
    with pytest.raises(ConfigurationError, match=message), hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    assert names(tmp_path) == []


@pytest.mark.parametrize("keys", [["."], ["/"], [""], ["a/"], ["and/or/."], ["x\0y"], ["a", "a/b"], ["a/./b"]])
def test_a_key_that_is_no_name_in_hdf5_is_refused(tmp_path, keys):
    with pytest.raises(ConfigurationError) as caught, hdf5_file(tmp_path / "o.hdf5") as writer:
        for key in keys:
            writer.write(key, VECTORS)
    assert str(caught.value).startswith("use_sentence_keys: expected sentences that HDF5 takes as names, got "
                                        f"{keys[-1]!r}")
    assert str(caught.value).endswith("line numbers always work")
    assert names(tmp_path) == []


@pytest.mark.parametrize("target, error, message", [
    (".", IsADirectoryError, "expected a file's path, got the directory"),
    ("", FileNotFoundError, "expected a file's path, got an empty one"),
    ("no/o.hdf5", FileNotFoundError, "expected an existing directory, found none at"),
    ("new/", FileNotFoundError, "expected an existing directory, found none at"),
    ("file/o.hdf5", FileNotFoundError, "expected an existing directory, found none at"),
    (os.devnull, PermissionError, "expected an ordinary file"),
])
def test_a_place_for_no_file_is_refused_before_any_work(tmp_path, monkeypatch, target, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(error, match=f"^output file: {message}"), hdf5_file(target):
        pytest.fail("the body ran")
    assert names(tmp_path) == ["file"]


def test_a_full_disk_is_found_at_once_and_leaves_nothing(tmp_path):
    code = f"""
import resource, signal
import numpy as np
from elmo_fast.embed.files import hdf5_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    with hdf5_file({str(tmp_path / "o.hdf5")!r}) as writer:
        for written in range(1000):
            writer.write(str(written), np.zeros((3, 7, 8)))
except OSError as error:
    print(written < 75, error.filename)
"""
    process = start(code)
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"True {tmp_path / 'o.hdf5'}\n", 0)
    assert names(tmp_path) == []
