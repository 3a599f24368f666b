import errno

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
