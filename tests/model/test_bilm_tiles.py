"""Whole models below `highest`, on all levels and on emulated tiles: char encoder, LSTM and packed weights."""

import numpy as np
import pytest
import torch

from elmo_fast import ElmoEmbedder, TokenTable, batch_to_ids, build_token_table, write_token_table
from elmo_fast.embed.embedder import Embedder
from elmo_fast.engine.native import NativeModel
from elmo_fast.engine.precision import PRECISIONS, lowest
from elmo_fast.errors import ConfigurationError
from elmo_fast.testing import AGAINST_FLOAT64, relative_error
from tests.support.engines import ISAS, LOW_ISAS, TILE_ISAS, isa
from tests.support.models import SENTENCES, SHAPES, bilm, options

LIMITS = {"high": AGAINST_FLOAT64["bf16x3"], "medium": AGAINST_FLOAT64["bf16"], "low": AGAINST_FLOAT64["int8"]}
LARGER = options({"dim": 96, "projection_dim": 40, "cell_clip": 0.3, "proj_clip": 0.05},
                 {"filters": [[1, 20], [3, 50]]})
IDS = batch_to_ids(SENTENCES)


@pytest.fixture(params=[*((name, precision) for name in TILE_ISAS for precision in ("high", "medium")),
                        *((name, "medium") for name in ISAS), *((name, "low") for name in LOW_ISAS)], ids=" ".join)
def precision(request):
    """A precision, on each instruction set that supports it."""
    name, precision = request.param
    with isa(name):
        yield precision


@pytest.mark.parametrize("shape", ["two layers", "clips that fire", "no highway", "no projection", "tanh", "larger"])
def test_every_layer_is_within_the_tolerance(precision, shape):
    sizes = LARGER if shape == "larger" else SHAPES[shape]
    exact = bilm(sizes, backend="reference").double()(IDS).activations
    actual = bilm(sizes, backend="native", precision=precision)(IDS).activations
    highest = bilm(sizes, backend="native")(IDS).activations
    for layer, exact_layer, plain in zip(actual, exact, highest):
        assert relative_error(layer, exact_layer) < LIMITS[precision]
        assert not torch.equal(layer, plain)  # rounded products affect every layer, including the first


def test_a_model_at_rest_has_the_bits_of_the_modules(precision):
    module = bilm(LARGER, backend="native", state="warm", precision=precision)
    at_rest = NativeModel(LARGER, module.weights(), precision)
    streams = (embedder.stream(SENTENCES, 3) for embedder in (Embedder(at_rest), ElmoEmbedder.from_bilm(module)))
    for vectors, expected in zip(*streams, strict=True):
        np.testing.assert_array_equal(vectors, expected)
    words = ["<S>", "</S>", "One"]
    table = build_token_table(at_rest, words)
    assert np.array_equal(table.vectors(range(3)), build_token_table(module, words).vectors(range(3)))
    module.token_table = table
    assert np.array_equal(module.encode(words), at_rest.encode(words))


def test_a_table_has_the_precision_of_its_model(precision, tmp_path):
    words = ["<S>", "</S>", *(f"word{k}" for k in range(40))]
    model, plain = bilm(LARGER, backend="native", precision=precision), bilm(LARGER, backend="native")
    write_token_table(model, words, tmp_path / "t.hdf5")
    table = TokenTable.open(tmp_path / "t.hdf5")
    assert table.precision == precision and build_token_table(plain, words).precision == "highest"
    assert np.array_equal(table.vectors(range(42)), model.encode(words))  # the same bits with the table
    model.token_table = table
    for better in [name for name in PRECISIONS if name != precision and lowest(name, precision) == precision]:
        plain.precision = better
        with pytest.raises(ConfigurationError, match=f"expected a table computed in '{better}', .* in '{precision}'"):
            plain.token_table = table
    model.precision = "highest"  # after the table was set
    with pytest.raises(ConfigurationError, match=f"computed in 'highest', .* computed in '{precision}'"):
        model.encode(["<S>"])


def test_a_model_of_lower_precision_accepts_a_table_of_higher_precision(precision):
    model = bilm(LARGER, backend="native")
    table = build_token_table(model, ["<S>", "</S>"])
    model.token_table, model.precision = table, precision
    assert np.array_equal(model.encode(["<S>"]), table.vectors([0]))
