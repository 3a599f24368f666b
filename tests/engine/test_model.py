"""The model at rest: on the C++ engine and in NumPy, against each other, and against the modules."""

import numpy as np
import pytest

from elmo_fast import BiLm, ElmoEmbedder
from elmo_fast.embed.embedder import Embedder
from elmo_fast.engine.backend import supports_precision
from elmo_fast.engine.model import addresses_of
from elmo_fast.engine.native import NativeModel
from elmo_fast.engine.precision import OPERANDS, PRECISIONS
from elmo_fast.engine.reference import NumpyModel
from tests.support.engines import needs_native
from tests.support.models import SENTENCES, SHAPES, texts, weights

TOKENS = [*SENTENCES[0], *SENTENCES[2], *SENTENCES[4], "<S>", "</S>"]


def error(actual, expected):
    """The relative Frobenius error."""
    return np.linalg.norm(actual.astype(float) - expected) / np.linalg.norm(expected)


def limit(precision):
    """The tolerance of what runs here: `medium` has 16-bit weights and fp32 products where that is faster."""
    return OPERANDS[PRECISIONS[precision].cpu].tolerance


@needs_native
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", [name for name in PRECISIONS if supports_precision(name)])
def test_the_engine_agrees_with_numpy_in_float64(shape, precision):
    options, values = SHAPES[shape], weights(SHAPES[shape])
    native, exact = NativeModel(options, values, precision), NumpyModel(options, values, dtype=np.float64)
    assert error(native.encode(TOKENS), exact.encode(TOKENS)) <= limit(precision)
    for state in ("zero", "warm", "carry"):
        runs = [list(Embedder(model, state).stream([*SENTENCES, *texts(9)], 3)) for model in (native, exact)]
        for actual, expected in zip(*runs, strict=True):
            assert actual.shape == expected.shape and actual.dtype == np.float32
            assert all(error(*pair) <= limit(precision) for pair in zip(actual, expected) if actual.size)


@pytest.mark.parametrize("shape", SHAPES)
def test_numpy_agrees_with_the_modules_reference(shape):
    options, values = SHAPES[shape], weights(SHAPES[shape])
    bilm = BiLm(options, values, state="zero", backend="reference").double()
    expected = ElmoEmbedder.from_bilm(bilm).embed_batch(SENTENCES)
    for dtype, tolerance in ((np.float32, OPERANDS["ieee"].tolerance), (np.float64, 1e-7)):
        model = Embedder(NumpyModel(options, values, dtype=dtype), "zero")
        for actual, exact in zip(model.batch([tuple(sentence) for sentence in SENTENCES], "zero"), expected):
            assert not exact.size or error(actual, exact) <= tolerance


@needs_native
@pytest.mark.parametrize("state", ["zero", "warm", "carry"])
def test_the_bits_of_vectors_are_those_of_modules(state):
    options, values = SHAPES["clips that fire"], weights(SHAPES["clips that fire"])
    at_rest = Embedder(NativeModel(options, values), state)
    module = ElmoEmbedder.from_bilm(BiLm(options, values, state=state, backend="native"))
    for _ in range(2):  # carried states go on
        for actual, expected in zip(at_rest.stream(texts(40), 8), module.stream(texts(40), 8), strict=True):
            np.testing.assert_array_equal(actual, expected)


@needs_native
def test_the_arrays_are_not_kept():
    values = weights(SHAPES["two layers"])
    model = NativeModel(SHAPES["two layers"], values)
    before = model.encode(TOKENS), list(Embedder(model, "zero").stream(SENTENCES, 3))
    for array in values.values():
        array.fill(np.nan)
    np.testing.assert_array_equal(model.encode(TOKENS), before[0])
    for actual, expected in zip(Embedder(model, "zero").stream(SENTENCES, 3), before[1], strict=True):
        np.testing.assert_array_equal(actual, expected)


@needs_native
def test_tokens_are_encoded_in_any_number_to_the_same_bits():
    model = NativeModel(SHAPES["two layers"], weights(SHAPES["two layers"]))
    words = [f"word{number}" for number in range(5000)]
    together = model.encode(words)
    for first in (0, 1, 2047, 2048, 4999):
        np.testing.assert_array_equal(model.encode(words[first : first + 1])[0], together[first])
    assert model.encode([]).shape == (0, 11)


@needs_native
def test_every_value_is_written_and_nothing_else():
    """Outputs of a run between guard zones of NaN."""
    from elmo_fast.engine.schedule import make_schedule

    options = SHAPES["four layers"]
    model, schedule = NativeModel(options, weights(options)), make_schedule(np.array([5, 1, 3]))
    packed_rows, size = schedule.tokens.shape[1], options.lstm.projection_dim
    memory = np.full((4, 2, packed_rows, 3 * size), np.nan, np.float32)
    addresses = addresses_of(memory) + np.uint64(4 * size)
    model.run(model.encode(TOKENS[:packed_rows]), schedule.tokens, schedule, model.begin(3, "zero"), addresses)
    assert np.isfinite(memory[..., size : 2 * size]).all()
    assert np.isnan(memory[..., :size]).all() and np.isnan(memory[..., 2 * size :]).all()
