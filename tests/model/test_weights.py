import json

import h5py
import numpy as np
import pytest

from elmo_fast import ConfigurationError, Options, random_weights, read_weights, write_weights
from tests.support.files import names, tiny, write_model

OPTIONS = Options.from_dict(tiny())
CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/"
SHAPES = {
    "char_embed": (261, 3),
    "CNN/W_cnn_0": (1, 1, 3, 4), "CNN/b_cnn_0": (4,), "CNN/W_cnn_1": (1, 2, 3, 6), "CNN/b_cnn_1": (6,),
    "CNN_high_0/W_carry": (10, 10), "CNN_high_0/b_carry": (10,),
    "CNN_high_0/W_transform": (10, 10), "CNN_high_0/b_transform": (10,),
    "CNN_proj/W_proj": (10, 4), "CNN_proj/b_proj": (4,),
    **{f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{name}": shape for direction in (0, 1)
       for layer in (0, 1) for name, shape in {"W_0": (8, 32), "B": (32,), "W_P_0": (8, 4)}.items()},
}


@pytest.fixture(params=["hdf5", "safetensors"])
def weight_file(tmp_path, request):
    path = write_model(tmp_path) / "weights.hdf5"
    if request.param == "hdf5":
        return path
    pytest.importorskip("safetensors")
    write_weights(tmp_path / "weights.safetensors", read_weights(path, OPTIONS))
    path.unlink()
    return tmp_path / "weights.safetensors"


def refusal(path, options=OPTIONS):
    with pytest.raises(ConfigurationError) as caught:
        read_weights(path, options)
    message = str(caught.value)
    assert message.startswith(f"weight_file {path}: ")
    return message.removeprefix(f"weight_file {path}: ")


def replace(path, name, values, **storage):
    if path.suffix == ".safetensors":
        numpy_files = pytest.importorskip("safetensors.numpy")
        tensors = numpy_files.load_file(path) | {name: values}
        numpy_files.save_file({key: value for key, value in tensors.items() if value is not None}, path)
        return
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        if values is not None:
            file.create_dataset(name, data=values, **storage)


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, values in expected.items():
        assert actual[name].dtype == np.float32 and actual[name].shape == values.shape, name
        assert actual[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("content", [
    tiny(), tiny(lstm__n_layers=1), tiny(lstm__n_layers=4), tiny(char_cnn__n_highway=0), tiny(lstm__projection_dim=8),
    {"lstm": tiny()["lstm"], "n_tokens_vocab": 5},
])
def test_weights_round_trip_byte_for_byte(tmp_path, content):
    options = Options.from_dict(content)
    weights = random_weights(options, seed=3)
    weights[CELL + "B"][:3] = np.float32([np.nan, -0.0, 1e-42])
    weights[CELL + "W_0"] = np.asfortranarray(weights[CELL + "W_0"])
    write_weights(tmp_path / "w.hdf5", weights)
    assert_same(read_weights(tmp_path / "w.hdf5", options, allow_nonfinite=True), weights)
    numpy_files = pytest.importorskip("safetensors.numpy")
    write_weights(tmp_path / "w.safetensors", weights)
    assert_same(read_weights(tmp_path / "w.safetensors", options, allow_nonfinite=True), weights)
    stored = numpy_files.load_file(tmp_path / "w.safetensors")
    assert_same({name: stored[name] for name in weights}, weights)
    assert len(stored) == len(weights) and names(tmp_path) == ["w.hdf5", "w.safetensors"]


def test_names_and_shapes_match_bilm_tf():
    assert {name: values.shape for name, values in random_weights(OPTIONS).items()} == SHAPES


def first_of_262_rows(path, expected):
    replace(path, "char_embed", np.concatenate([np.full((1, 3), 9, np.float32), expected["char_embed"]]))


def one_layers_names(path, _):
    with h5py.File(path, "r+") as file:
        for direction in "01":
            file.move(f"RNN_{direction}/RNN/MultiRNNCell/Cell0/LSTMCell", f"RNN_{direction}/RNN/LSTMCell")
            del file[f"RNN_{direction}/RNN/MultiRNNCell"]


def other_datasets(path, _):
    with h5py.File(path, "r+") as file:
        file["softmax/W"] = file["embedding"] = np.zeros((3, 3))


def compression(path, expected):
    replace(path, CELL + "W_0", expected[CELL + "W_0"], compression="gzip", chunks=(4, 4))


@pytest.mark.parametrize("change, layers", [(first_of_262_rows, 2), (one_layers_names, 1), (other_datasets, 2),
                                            (compression, 2)])
def test_files_of_other_writers_are_read(tmp_path, change, layers):
    options = Options.from_dict(tiny(lstm__n_layers=layers))
    path = write_model(tmp_path, tiny(lstm__n_layers=layers)) / "weights.hdf5"
    expected = read_weights(path, options)
    change(path, expected)
    assert_same(read_weights(path, options), expected)


@pytest.mark.parametrize("name, shape", [
    *((name, None) for name in SHAPES), ("char_embed", (260, 3)), ("char_embed", (263, 3)), ("char_embed", (262, 4)),
    ("CNN/W_cnn_1", (2, 3, 6)), (CELL + "W_0", (32, 8)), (CELL + "B", ())])
def test_a_missing_or_misshapen_dataset_is_named(weight_file, name, shape):
    replace(weight_file, name, None if shape is None else np.zeros(shape, np.float32))
    actual = "none" if shape is None else shape
    assert refusal(weight_file) == f"dataset {name}: expected shape {SHAPES[name]}, found {actual}"


@pytest.mark.parametrize("content, surplus", [
    (tiny(lstm__n_layers=1), "expected only the weights of the model's sizes, found RNN_0/"),
    (tiny(lstm__n_layers=1), "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B and 5 more"),
    (tiny(char_cnn__n_highway=0), "CNN_high_0/W_carry and 3 more"),
    (tiny(char_cnn__filters=[[1, 4]]), "dataset CNN_high_0/W_carry: expected shape (4, 4), found (10, 10)"),
])
def test_weights_of_a_larger_model_are_refused(weight_file, content, surplus):
    assert surplus in refusal(weight_file, Options.from_dict(content))


@pytest.mark.parametrize("name", ["CNN_high_0/W", "RNN_0/states", "attention/W", "char_embed_2", "step"])
def test_a_dataset_that_nothing_reads_is_refused(weight_file, name):
    replace(weight_file, name, np.zeros(3, np.float32))
    assert refusal(weight_file).endswith(f"found {name} and 0 more beside them")


def test_a_projection_between_equal_sizes_is_optional(tmp_path):
    content = tiny(char_cnn__filters=[[1, 1], [2, 3]])
    path = write_model(tmp_path, content) / "weights.hdf5"
    options = Options.from_dict(content)
    assert "CNN_proj/W_proj" not in read_weights(path, options)
    with h5py.File(path, "r+") as file:
        file["CNN_proj/W_proj"] = np.eye(4, dtype=np.float32)
        file["CNN_proj/b_proj"] = np.ones(4, dtype=np.float32)
    weights = read_weights(path, options)
    assert weights["CNN_proj/W_proj"].tolist() == np.eye(4).tolist() and weights["CNN_proj/b_proj"].tolist() == [1] * 4


@pytest.mark.parametrize("storage, value", [({"dtype": np.float16}, 7e4), ({"mantissa_bits": 4}, -7e4),
                                            ({"mantissa_bits": 3}, 65504)])
def test_values_beyond_float16_are_refused(tmp_path, storage, value):
    with pytest.raises(ConfigurationError, match=rf"W: expected values that float16 holds, got {abs(value):g}"):
        write_weights(tmp_path / "w.hdf5", {"W": np.full((2, 3), value, np.float32)}, **storage)
    assert not any(tmp_path.iterdir())
    write_weights(tmp_path / "w.hdf5", {"W": np.array([[np.inf, np.nan, -np.inf]])}, **storage)
    with h5py.File(tmp_path / "w.hdf5") as file:
        np.testing.assert_array_equal(file["W"], [[np.inf, np.nan, -np.inf]])


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4"])
def test_other_float_types_are_read_as_float32(weight_file, dtype):
    values = np.array([[0.5, -2.0, 0.1]] * 261).astype(dtype)
    replace(weight_file, "char_embed", values)
    embedding = read_weights(weight_file, OPTIONS)["char_embed"]
    assert embedding.dtype == np.float32 and embedding.tolist() == values.astype(np.float32).tolist()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "complex64", "S3"])
def test_datasets_of_other_types_are_refused(weight_file, dtype):
    if (weight_file.suffix, dtype) == (".safetensors", "S3"):
        pytest.skip("safetensors has no strings")
    replace(weight_file, "char_embed", np.zeros((261, 3), dtype))
    assert refusal(weight_file).startswith("dataset char_embed: expected floating-point numbers, found")


def tensor(**changes):
    """A safetensors file of one tensor of two values, whose entry has the changes."""
    entry = json.dumps({"char_embed": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}).encode()
    return len(entry).to_bytes(8, "little") + entry + bytes(8)


@pytest.mark.parametrize("content", [b"", b"hello\n" * 500, b"{}", b"\x89HDF\r\n\x1a\n", b"\xff" * 99,
                                     tensor(dtype="BF16", shape=[4]), tensor(shape=[3]),
                                     tensor(shape=[0, 1 << 62], data_offsets=[0, 0]), 0.001, 0.1, 0.5, 0.99])
def test_a_file_of_another_kind_or_cut_short_is_refused(weight_file, content):
    whole = weight_file.read_bytes()
    weight_file.write_bytes(whole[: int(content * len(whole))] if isinstance(content, float) else content)
    assert refusal(weight_file).startswith(("expected an HDF5 file, got something else or",
                                            "expected a safetensors file of NumPy's types, got something else or"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(weight_file):
    before = weight_file.read_bytes()
    for path in (weight_file, weight_file.with_stem("new")):
        with pytest.raises(ValueError):
            write_weights(path, {**random_weights(OPTIONS), "CNN/W_cnn_0": "not numbers"})
    assert weight_file.read_bytes() == before
    assert names(weight_file.parent) == ["options.json", weight_file.name]
    with pytest.raises(FileNotFoundError, match="weight file: expected an existing directory"):
        write_weights(weight_file.parent / "no" / weight_file.name, random_weights(OPTIONS))
