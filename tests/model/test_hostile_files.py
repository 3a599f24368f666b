"""Hostile files: deep nesting, names, duplicate keys, tensors of other kinds, words that unpack without end."""

import gzip
import json

import h5py
import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import BiLm, ConfigurationError, Vocabulary
from elmo_fast.files.json import parse_json, read_json
from tests.support.files import paths, write_model
from tests.support.manylangs import write_manylangs


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model")


@pytest.fixture
def many(tmp_path):
    return write_manylangs(tmp_path / "many")


def refused(model, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        BiLm.from_files(*paths(model))
    assert paths(model)[1].name in str(error.value) and len(str(error.value)) < 600


def test_nested_groups_are_walked_to_a_limit(model):
    """The message names the path at the limit; without a limit, the walk would take a minute."""
    with h5py.File(paths(model)[1], "r+") as file:
        place = file.id
        for _ in range(4000):
            place = h5py.h5g.create(place, b"a")
        h5py.Group(place)["x"] = np.zeros(3, np.float32)
    refused(model, "a/a/.*: expected at most 256 nested groups")
    with h5py.File(paths(model)[1]) as file:
        assert file.id.links.visit(lambda link: link.count(b"/") > 256 or None)


def test_a_cycle_and_250_nested_groups_are_read(model):
    with h5py.File(paths(model)[1], "r+") as file:
        file.create_group("/".join("a" * 250))
        file["a/self"] = file["/"]
    assert BiLm.from_files(*paths(model))


@pytest.mark.parametrize("name", [b"\xff\xfe", b"CNN/\xc3", b"RNN_0/\xed\xa0\x80"])
def test_a_name_that_is_not_utf8_is_named(model, name):
    with h5py.File(paths(model)[1], "r+") as file:
        h5py.h5d.create(file.id, name, h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((3,)))
    refused(model, "expected names in UTF-8, found other bytes")


def test_duplicate_keys_and_any_depth_are_refused(model):
    options, _ = paths(model)
    text = options.read_text()
    options.write_text(text.replace('"n_layers"', '"n_layers": 1, "n_layers"', 1))
    with pytest.raises(ConfigurationError, match="options.json: expected JSON.*the key 'n_layers' twice in an object"):
        BiLm.from_files(*paths(model))
    for content in ("[" * 100_000, '{"a":' * 100_000, "1" * 5000, "\xff", "", "{"):
        options.write_text(content, encoding="latin1")
        with pytest.raises(ConfigurationError, match="options.json: expected JSON"):
            read_json(options)
    assert parse_json(b'\xef\xbb\xbf{"a": [1, {"b": 2}], "b": 3}', "w") == {"a": [1, {"b": 2}], "b": 3}


def change(many, value):
    """Replace a tensor of `encoder.pkl` by a function of it."""
    content, name = torch.load(many / "encoder.pkl"), "forward_layer_0.input_linearity.weight"
    content[name] = value(content[name])
    torch.save(content, many / "encoder.pkl")


@pytest.mark.parametrize("value, message", [
    (torch.Tensor.to_sparse, "sparse_coo"), (lambda values: values.to("meta"), "on meta"),
    (lambda values: values.to(torch.complex64), "complex64"), (torch.Tensor.int, "int32"), (torch.Tensor.bool, "bool"),
    (lambda values: torch.zeros(1).as_strided(values.shape, (0, 0)), "in memory"),
    (lambda values: torch.nested.nested_tensor([values]), "nested"), (lambda _: "text", "expected shape"),
])
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_of_another_kind_is_named(many, value, message):
    change(many, value)
    pattern = f"forward_layer_0.input_linearity.weight: .*{message}"
    if message == "nested":  # torch 2.15 reads no nested tensors
        pattern = f"({pattern}|expected tensors written by torch.save)"
    with pytest.raises(ConfigurationError, match=f"encoder.pkl: {pattern}"):
        elmo_fast.load(many)


@pytest.mark.parametrize("section, key, surplus", [
    ("encoder", "n_layers", "encoder.pkl: .*found backward_layer_1.* and 7 more"),
    ("token_embedder", "n_highway", "token_embedder.pkl: .*found highways._layers.1.bias and 1 more"),
    ("token_embedder", "word_dim", "token_embedder.pkl: projection.weight: expected shape")])
def test_sizes_of_a_smaller_model_than_the_weights_are_refused(many, section, key, surplus):
    content = json.loads((many / "sizes.json").read_text())
    content[section][key] = 0 if key == "word_dim" else content[section][key] - 1
    (many / "sizes.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=surplus):
        elmo_fast.load(many)


@pytest.mark.parametrize("name, content, message", [
    ("config.json", json.dumps({"config_path": "x" * 5000}), "config.json: expected the key config_path"),
    ("config.json", '{"config_path": "a", "config_path": "sizes.json"}', "config.json: .* twice in an object"),
    ("char.dic", "a\t" + "9" * 5000, "char.dic: expected a token, a tab and a number"),
    ("char.dic", "a\t-1", "char.dic: .* in line 1"), ("word.dic", b"\xff\t1", "word.dic: .* in UTF-8"),
])
def test_lexicons_and_configs_name_their_line(many, name, content, message):
    (many / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match=message) as error:
        elmo_fast.load(many)
    assert len(str(error.value)) < 600


def test_words_unpack_to_a_bounded_size(tmp_path):
    path = tmp_path / "vocab.txt.gz"
    path.write_bytes(gzip.compress(b"a" * (33 << 20)))
    with pytest.raises(ValueError, match="vocab.txt.gz: expected at most .* bytes when unpacked"):
        Vocabulary(path)
