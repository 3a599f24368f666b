"""Models whose weights are a file `*.safetensors`; test_weights.py has the file alone."""

import shutil
import sys
import zipfile

import fsspec
import pytest

import elmo_fast
from elmo_fast import ConfigurationError, Options, random_weights, read_weights, write_weights
from tests.support.files import names, run, tiny, write_model

pytest.importorskip("safetensors")

OPTIONS = Options.from_dict(tiny())
TEXTS = ["The cat sat .", ["caf\u00e9", "\u732b"], "A"]
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def model(tmp_path):
    """A directory with options.json and model.safetensors, beside the same model in HDF5."""
    source, folder = write_model(tmp_path / "hdf5"), tmp_path / "model"
    folder.mkdir()
    shutil.copy(source / "options.json", folder)
    write_weights(folder / "model.safetensors", read_weights(source / "weights.hdf5", OPTIONS))
    return folder


def zipped(model):
    with zipfile.ZipFile(model.with_suffix(".zip"), "w") as archive:
        for path in model.iterdir():
            archive.write(path, f"inner/{path.name}")
    return elmo_fast.load(model.with_suffix(".zip"))


def from_a_url(model):
    fsspec.filesystem("memory").put(str(model), "/owner/repository", recursive=True)
    return elmo_fast.load("memory://owner/repository")


def two_files(model):
    bilm = elmo_fast.BiLm.from_files(model / "options.json", model / "model.safetensors")
    return elmo_fast.LoadedElmo(bilm)


@pytest.mark.parametrize("load", [elmo_fast.load, zipped, from_a_url, two_files])
def test_vectors_are_those_of_hdf5(model, tmp_path, load):
    expected = elmo_fast.load(tmp_path / "hdf5").embed(TEXTS)
    for ours, theirs in zip(load(model).embed(TEXTS), expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_without_the_library(model, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    status, output, error = run(capsys, "info", model)
    assert (status, output) == (1, "") and error.endswith('pip install "elmo-fast[safetensors]"\n')
    with pytest.raises(ImportError, match=r"elmo-fast\[safetensors\]"):
        write_weights(model / "new.safetensors", random_weights(OPTIONS))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"^reading hf://owner/name needs a package.*elmo-fast\[hub\]"):
        elmo_fast.load("hf://owner/name")
    assert names(model) == ["model.safetensors", "options.json"]


def test_a_single_file_and_two_formats_say_what_to_give(model, tmp_path, capsys):
    status, _, error = run(capsys, "info", model / "model.safetensors")
    assert status == 2 and "a safetensors file: --options-file and --weight-file are given together" in error
    shutil.copy(tmp_path / "hdf5" / "weights.hdf5", model)
    with pytest.raises(ConfigurationError, match=r"found model.safetensors, weights.hdf5$"):
        elmo_fast.load(model)
