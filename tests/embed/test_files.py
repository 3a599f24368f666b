import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError
from elmo_fast.vectors.layouts.allennlp import hdf5_file
from tests.support.files import names

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
