"""Models whose weights are a file `*.safetensors`, written and read by the real library."""

import json
import shutil
import sys
import zipfile

import fsspec
import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError, Options, random_weights, read_weights, write_weights
from tests.support.files import names, run, tiny, write_model

numpy_files = pytest.importorskip("safetensors.numpy")

OPTIONS = Options.from_dict(tiny())
CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/"
TEXTS = ["The cat sat .", ["caf\u00e9", "\u732b"], "A"]
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def model(tmp_path):
    """A directory with options.json and model.safetensors."""
    return converted(write_model(tmp_path / "hdf5"), tmp_path / "model")


def converted(source, folder):
    folder.mkdir()
    shutil.copy(source / "options.json", folder)
    options = Options.from_file(source / "options.json")
    write_weights(folder / "model.safetensors", read_weights(source / "weights.hdf5", options))
    return folder


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (values.dtype, values.shape), name
        assert actual[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("content", [
    tiny(), tiny(lstm__n_layers=1), tiny(lstm__n_layers=4), tiny(char_cnn__n_highway=0), tiny(lstm__projection_dim=8),
    {"lstm": tiny()["lstm"], "n_tokens_vocab": 5},
])
def test_every_bit_is_kept_under_the_same_names(tmp_path, content):
    options = Options.from_dict(content)
    weights = random_weights(options, seed=3)
    weights[CELL + "B"][:3] = np.float32([np.nan, -0.0, 1e-42])
    weights[CELL + "W_0"] = np.asfortranarray(weights[CELL + "W_0"])
    for suffix in ("hdf5", "safetensors"):
        write_weights(tmp_path / f"w.{suffix}", weights)
        assert_same(read_weights(tmp_path / f"w.{suffix}", options, allow_nonfinite=True), weights)
    assert_same(numpy_files.load_file(tmp_path / "w.safetensors"), weights)
    assert names(tmp_path) == ["w.hdf5", "w.safetensors"]


@pytest.mark.parametrize("place", ["directory", "two files", "zip", "url"])
def test_vectors_are_those_of_hdf5(model, tmp_path, place):
    expected = elmo_fast.load(tmp_path / "hdf5").embed(TEXTS)
    if place == "two files":
        elmo = elmo_fast.LoadedElmo(elmo_fast.BiLm.from_files(model / "options.json", model / "model.safetensors"))
    elif place == "zip":
        with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
            for path in model.iterdir():
                archive.write(path, f"inner/{path.name}")
        elmo = elmo_fast.load(tmp_path / "m.zip")
    elif place == "url":
        fsspec.filesystem("memory").put(str(model), "/owner/repository", recursive=True)
        elmo = elmo_fast.load("memory://owner/repository")
    else:
        elmo = elmo_fast.load(model)
    for ours, theirs in zip(elmo.embed(TEXTS), expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_float16_and_its_range(tmp_path):
    weights = random_weights(OPTIONS)
    write_weights(tmp_path / "w.safetensors", weights, np.float16)
    assert numpy_files.load_file(tmp_path / "w.safetensors")["char_embed"].dtype == np.float16
    halved = {name: values.astype(np.float16).astype(np.float32) for name, values in weights.items()}
    assert_same(read_weights(tmp_path / "w.safetensors", OPTIONS), halved)
    weights[CELL + "B"][0] = 7e4
    with pytest.raises(ConfigurationError, match=f"^{CELL}B: expected values that float16 holds"):
        write_weights(tmp_path / "new.safetensors", weights, np.float16)
    assert names(tmp_path) == ["w.safetensors"]


def header(changes):
    """A file of one tensor of two values, whose entry has the changes."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    text = json.dumps({"char_embed": entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: content[:5], lambda content: content[:100], lambda content: content[:-1],
    lambda content: content + b"a", lambda content: b"\xff" * 8 + content[8:],
    lambda content: b"\x89HDF\r\n\x1a\n" * 9,
    lambda content: content.replace(b'"shape"', b'"shaqe"', 1), lambda content: header({"dtype": "BF16", "shape": [4]}),
    lambda content: header({"shape": [3]}), lambda content: header({"shape": [0, 1 << 62], "data_offsets": [0, 0]}),
])
def test_damage_is_refused_by_the_name_of_the_file(model, damage):
    path = model / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigurationError) as caught:
        elmo_fast.load(model)
    assert str(caught.value).startswith(f"weight_file {path}: expected a safetensors file of NumPy's types, got ")


@pytest.mark.parametrize("change, message", [
    ({"attention/W": np.zeros(2, np.float32)}, "expected only the weights of the model's sizes, found attention/W"),
    ({CELL + "B": None}, f"dataset {CELL}B: expected shape \\(32,\\), found none"),
    ({CELL + "B": np.zeros(31, np.float32)}, f"dataset {CELL}B: expected shape \\(32,\\), found \\(31,\\)"),
    ({CELL + "B": np.zeros(32, np.int32)}, f"dataset {CELL}B: expected floating-point numbers, found int32"),
    ({CELL + "B": np.full(32, np.nan, np.float32)}, f"dataset {CELL}B: expected finite float32 numbers, found 32"),
])
def test_other_tensors_than_those_of_the_options_are_named(model, change, message):
    path = model / "model.safetensors"
    tensors = {name: value for name, value in (numpy_files.load_file(path) | change).items() if value is not None}
    numpy_files.save_file(tensors, path)
    with pytest.raises(ConfigurationError, match=f"^weight_file {path}: {message}"):
        elmo_fast.load(model)


def test_the_softmax_of_a_language_model_beside_a_bilm_is_not_read(model):
    path = model / "model.safetensors"
    expected = elmo_fast.load(model).encode(TEXTS)
    numpy_files.save_file(numpy_files.load_file(path) | {"softmax/b": np.zeros(7, np.float32)}, path)
    np.testing.assert_array_equal(elmo_fast.load(model).encode(TEXTS), expected)


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
    assert status == 2 and "a safetensors file: weights are given as --weight-file beside --options-file" in error
    shutil.copy(tmp_path / "hdf5" / "weights.hdf5", model)
    with pytest.raises(ConfigurationError, match="found model.safetensors, weights.hdf5$"):
        elmo_fast.load(model)
