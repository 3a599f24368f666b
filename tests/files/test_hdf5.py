"""HDF5 files that lead to other files, unpack to more than memory, or hold numbers that are not finite."""

import os

import h5py
import numpy as np
import pytest

from elmo_fast import BiLm, ConfigurationError, Elmo, ElmoEmbedder, Options, load, read_weights
from elmo_fast.compat.allennlp.modules import Elmo as AllenNlpElmo
from elmo_fast.engine.table_file import read_table
from elmo_fast.files.hdf5 import is_hdf5, open_hdf5
from elmo_fast.nn.softmax_head import read_softmax
from tests.robustness.damage import lead_out
from tests.support.files import TINY, paths, write_model

B = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model")


@pytest.fixture
def secret(tmp_path):
    """A file of the user that does not belong to the model."""
    path = tmp_path / "secret"
    path.write_bytes(b"root:x:0:0:" * 5000)
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["values"] = np.full(64, 7, np.float32)
    return path


def test_a_pipe_and_a_file_that_cannot_be_read_are_not_hdf5(tmp_path, secret):
    os.mkfifo(tmp_path / "pipe")
    os.chmod(tmp_path / "secret.hdf5", 0)
    assert not is_hdf5(tmp_path / "pipe") and is_hdf5(tmp_path / "secret.hdf5") == (os.geteuid() == 0)


@pytest.mark.parametrize("way, message", [
    ("external storage", "values in the file itself, found them in other files"),
    ("virtual dataset", "values in the file itself, found them in other files"),
    ("external link", "a dataset in the file itself, found a soft or external link"),
    ("soft link", "a dataset in the file itself, found a soft or external link")])
def test_weights_that_lead_to_another_file_are_refused(model, secret, way, message):
    options_file, weight_file = paths(model)
    with h5py.File(weight_file, "r+") as file:
        lead_out(file, B, way, secret)
    with pytest.raises(ConfigurationError, match=f"^weight_file {weight_file}: {B}: expected {message}$"):
        BiLm.from_files(options_file, weight_file)


def test_tables_and_a_softmax_that_lead_to_another_file_are_refused(tmp_path, secret):
    for name, read in (("embedding", read_table), ("softmax/W", lambda path: read_softmax(path, 4))):
        path = tmp_path / f"{name.replace('/', '_')}.hdf5"
        with h5py.File(path, "w") as file:
            file[name] = h5py.ExternalLink(str(secret.with_suffix(".hdf5")), "/values")
        with pytest.raises(ConfigurationError, match=f"{path}: {name}: expected a dataset in the file itself"):
            read(path)


def test_datasets_of_implausible_sizes_are_refused(tmp_path):
    path = tmp_path / "huge.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("embedding", (1 << 40, 8), np.float32, chunks=(1 << 10, 8))
    with pytest.raises(ConfigurationError, match="embedding: expected at most 8 GB, or 10 times the .* bytes of the "
                                                 "file, when unpacked, found 35,184,372,088,832 bytes"):
        read_table(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_unless_allowed(model, value):
    files = paths(model)
    with h5py.File(files[1], "r+") as file:
        file[B][3] = value
    message = f"^weight_file {files[1]}: dataset {B}: expected finite float32 numbers, found 1 that are NaN or infinite"
    for read in (lambda **more: load(model, **more).bilm, lambda **more: BiLm.from_files(*files, **more),
                 lambda **more: ElmoEmbedder(*files, **more).elmo_bilm,
                 lambda **more: Elmo(*files, 1, **more)._elmo_lstm,
                 lambda **more: AllenNlpElmo(*files, 1, **more)._elmo_lstm):
        with pytest.raises(ValueError, match=f"{message}; allow_nonfinite=True loads them$"):
            read()
        assert np.array_equal(read(allow_nonfinite=True).weights()[B][3], value, equal_nan=True)


def test_large_finite_numbers_are_no_infinities(model):
    _, weight_file = paths(model)
    with h5py.File(weight_file, "r+") as file:
        file[B][...] = 3e38  # their sum is infinite
    assert (read_weights(weight_file, Options.from_dict(TINY))[B] == np.float32(3e38)).all()


def test_float64_beyond_float32_is_an_infinity(model):
    _, weight_file = paths(model)
    with h5py.File(weight_file, "r+") as file:
        values = file[B][...].astype(np.float64)
        del file[B]
        file[B] = values * 0 + 1e300
    with pytest.raises(ConfigurationError, match="expected finite float32 numbers"):
        read_weights(weight_file, Options.from_dict(TINY))


@pytest.mark.parametrize("size", [0, 1, 1 << 63, (1 << 64) - 16])
def test_a_heap_of_strings_that_hdf5_reads_for_ever_is_refused(tmp_path, size):
    path = tmp_path / "table.hdf5"
    with h5py.File(path, "w") as file:
        file["embedding"] = np.zeros((2, 3), np.float32)
        file.attrs.update(fingerprint="0" * 32, precision="highest", format_version=1)
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    end, at = heap + int.from_bytes(content[heap + 8 : heap + 16], "little"), heap + 16
    while any(content[at : at + 2]):  # to the free space
        at += 16 + (int.from_bytes(content[at + 8 : at + 16], "little") + 7 & ~7)
    assert at < end
    content[at + 8 : at + 16] = size.to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^token table {path}: expected an HDF5 file, .*a heap of strings is"):
        read_table(path)


def test_heaps_of_strings_of_every_size_are_read(tmp_path):
    path = tmp_path / "strings.hdf5"
    texts = ["x" * (7 * k % 200) for k in range(300)]
    with h5py.File(path, "w") as file:
        for number, text in enumerate(texts):
            file.attrs[str(number)] = text
        file["numbers"] = np.zeros((100, 10))
        file.create_dataset("texts", data=texts, dtype=h5py.string_dtype())
    with h5py.File(path, "a") as file:
        for number in range(0, 300, 3):
            del file.attrs[str(number)]
        file["texts"][::2] = "y"
        file.attrs["large"] = "z" * 20_000
    with open_hdf5(path, "weight_file") as file:
        assert file.attrs["large"] == "z" * 20_000 and file.attrs["1"] == texts[1]
        assert [text.decode() for text in file["texts"][1:6:2]] == texts[1:6:2]


def test_attributes_that_are_sequences_are_refused(tmp_path):
    """A flipped bit makes a sequence of a string, and HDF5 then reads foreign memory."""
    path = tmp_path / "table.hdf5"
    with h5py.File(path, "w") as file:
        file["embedding"], file.attrs["format_version"] = np.zeros((2, 3), np.float32), 1
        kind = h5py.h5t.vlen_create(h5py.h5t.NATIVE_INT64)
        h5py.h5a.create(file.id, b"fingerprint", kind, h5py.h5s.create(h5py.h5s.SCALAR))
    with pytest.raises(ConfigurationError, match="attribute fingerprint: expected numbers or strings, found sequences"):
        read_table(path)
