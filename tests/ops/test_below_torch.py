"""Char encoder and LSTM stack in packed weights: the bits of the ops or layers in turn, in every engine."""

import numpy as np
import pytest
import torch

from elmo_fast.engine.schedule import make_schedule
from elmo_fast.nn.layers.carried import RunState
from elmo_fast.nn.layers.lstm import run_layers
from elmo_fast.nn.layers.token_vectors import token_vectors
from elmo_fast.ops.numerics import numerics
from tests.support.engines import BF16_DOTS, BF16_WEIGHTS, HIGHEST, LOW, TILES, needs_native
from tests.support.models import SENTENCES, SHAPES, bilm

pytestmark = needs_native
CPU = torch.device("cpu")
engines = pytest.mark.parametrize("engine", [*HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW], ids=str)


def scattered(layers, packed_rows, width, generator):
    """Addresses uint64 [layers, 2, S] of pieces of `width` values in poisoned memory, the memory, and the pieces."""
    memory = np.full((2 * layers * packed_rows + 7, width + 3), np.nan, np.float32)
    pieces = generator.permutation(len(memory))[: 2 * layers * packed_rows]
    return (memory.ctypes.data + pieces * memory.strides[0]).astype(np.uint64).reshape(layers, 2, -1), memory, pieces


@engines
@pytest.mark.parametrize("shape", ["clips that fire", "four layers", "no projection", "no skip connections"])
@pytest.mark.parametrize("is_warm", [False, True])
def test_outputs_equal_the_layers_in_turn(engine, shape, is_warm):
    generator = np.random.default_rng(4)
    stack = bilm(SHAPES[shape], backend="native")._elmo_lstm
    schedule = make_schedule([5, 0, 3, 9, 1, 2], [2, 0, 1, 0, 2, 1], 4)
    layers, h_dim, c_dim = stack.state_sizes
    rows = generator.integers(0, 7, (2, 20)).astype(np.int32)
    vectors = torch.from_numpy(generator.normal(size=(7, h_dim // 2)).astype(np.float32))
    initial = tuple(torch.from_numpy(generator.normal(size=(layers, 4, size)).astype(np.float32))
                    for size in (h_dim, c_dim))
    starts = tuple(values[:, 1].contiguous() for values in initial) if is_warm else None
    addresses, memory, pieces = scattered(layers, 20, h_dim // 2, generator)
    with torch.no_grad(), engine.active():
        expected, final = run_layers(stack.layer_weights(), stack.options, vectors, torch.from_numpy(rows), schedule,
                                     RunState(initial, starts), backend="native", precision=engine.precision)
        actual = stack.write(vectors, rows, schedule, RunState(initial, starts), addresses, engine.precision)
    assert all(map(torch.equal, actual, final))
    written = memory[pieces, : h_dim // 2].reshape(layers, 2, 20, -1)
    for layer, expected_layer in zip(written, expected, strict=True):
        assert np.array_equal(np.concatenate(list(layer), 1), expected_layer.numpy())
    memory[pieces, : h_dim // 2] = np.nan
    assert np.isnan(memory).all()


@engines
@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_equal_the_ops_in_turn(engine, shape):
    source = bilm(SHAPES[shape], backend="native").token_source
    ids = source.token_ids([token for sentence in SENTENCES for token in sentence])
    with torch.no_grad(), engine.active(), numerics(engine.precision, CPU):
        expected = token_vectors(ids, source.weights(), source.model_options, "native")
        assert torch.equal(source.encode_rows(ids, "native"), expected)
