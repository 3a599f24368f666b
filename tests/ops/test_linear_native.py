"""The C++ product y = epilogue(x W + b) and the activations, against NumPy in float64."""

import numpy as np
import pytest

from elmo_fast.testing import AGAINST_FLOAT64
from tests.support.grid import grid
from tests.support.native_lstm import ENGINES, HIGH, HIGHEST, MEDIUM, address, error, isa, native, normal

NONE, RELU, HIGHWAY = 0, 1, 2
TOLERANCE = {HIGHEST: 1e-6, HIGH: AGAINST_FLOAT64["high-amx"], MEDIUM: AGAINST_FLOAT64["medium-bf16"]}
SIZES = [(1, 1), (16, 32), (37, 11), (700, 70), (512, 512)]


@pytest.fixture(params=ENGINES, ids=lambda engine: f"{engine[0]}-{engine[1]}")
def precision(request):
    """The precision, on every instruction set that runs it."""
    with isa(request.param[0]):
        yield request.param[1]


class Linear:
    """W [K, M], b [M] and, for a highway layer, Wt and bt."""

    def __init__(self, rng, inputs, outputs, epilogue, bias=True, precision=HIGHEST):
        self.inputs, self.outputs, self.epilogue, self.precision = inputs, outputs, epilogue, precision
        pairs = 2 if epilogue == HIGHWAY else 1
        self.w = [normal(rng, inputs, outputs) for _ in range(pairs)] + [None]
        self.b = [normal(rng, outputs) if bias else None for _ in range(pairs)] + [None]
        self.packed = np.full(native.linear_packed_size(inputs, outputs, epilogue, precision), 255, np.uint8)
        pointers = [address(each) for each in (self.w[0], self.b[0], self.w[1], self.b[1], self.packed)]
        native.linear_pack(inputs, outputs, epilogue, precision, *pointers, self.packed.size)

    def run(self, x, threads=1, rows=None, x_stride=None, pad=0):
        """[rows, M]; `pad` floats beyond each row must stay NaN."""
        rows = len(x) if rows is None else rows
        y = np.full((rows, self.outputs + pad), np.nan, np.float32)
        native.linear_forward(
            input=self.inputs, output=self.outputs, epilogue=self.epilogue, precision=self.precision,
            packed=address(self.packed), packed_size=self.packed.size, x=address(x), rows=rows,
            x_stride=x.shape[-1] if x_stride is None else x_stride, y=address(y), y_stride=y.shape[1], threads=threads)
        assert np.isnan(y[:, self.outputs :]).all()
        return y[:, : self.outputs]

    def reference(self, x):
        x = x.astype(np.float64)
        z = [x @ w.astype(np.float64) + (0 if b is None else b) for w, b in zip(self.w, self.b) if w is not None]
        if self.epilogue == RELU:
            return np.maximum(z[0], 0)
        if self.epilogue == HIGHWAY:
            gate = 1 / (1 + np.exp(-z[0]))
            return gate * np.maximum(z[1], 0) + (1 - gate) * x
        return z[0]


@pytest.mark.parametrize("engine, epilogue, size, rows",
                         grid(ENGINES, [NONE, RELU, HIGHWAY], SIZES, [1, 5, 14, 15, 100, 1000]))
def test_product(engine, epilogue, size, rows):
    (name, precision), (inputs, outputs) = engine, size
    if precision != HIGHEST and rows * inputs * outputs > 1e7:
        rows = rows // 10 + 3  # an emulation of tiles is slow
    rng = np.random.default_rng(rows)
    x = normal(rng, rows, inputs)
    with isa(name):
        linear = Linear(rng, inputs, inputs if epilogue == HIGHWAY else outputs, epilogue, precision=precision)
        got = linear.run(x, pad=3)
        assert error(got, linear.reference(x)) <= TOLERANCE[precision]
        for threads in (2, 3, 5):
            assert (linear.run(x, threads=threads) == got).all()
        for k in (0, rows // 2, rows - 1):
            assert (linear.run(x[k : k + 1]) == got[k]).all()


def test_sliding_window_and_no_bias(precision):
    rng = np.random.default_rng(0)
    linear = Linear(rng, 48, 20, NONE, bias=False, precision=precision)
    x = normal(rng, 16 * 50)
    windows = np.lib.stride_tricks.sliding_window_view(x, 48)[::16]
    got = linear.run(x, rows=len(windows), x_stride=16, threads=2)
    assert error(got, linear.reference(windows)) <= TOLERANCE[precision]


@pytest.mark.parametrize("epilogue", [NONE, HIGHWAY])
@pytest.mark.parametrize("size", [6, 40])  # values put one by one, and sixteen at a time
def test_nan_and_infinity_pass(precision, epilogue, size):
    linear = Linear(np.random.default_rng(1), size, size, epilogue, precision=precision)
    x = normal(np.random.default_rng(2), 5, size)
    x[1, 2], x[2, 3], x[3, 4] = np.nan, np.inf, -np.inf
    if precision != MEDIUM and epilogue == NONE:  # the largest bf16 is smaller
        x[4, 5] = 3.4e38
    with np.errstate(invalid="ignore", over="ignore"):
        expected = linear.reference(x).astype(np.float32)
    got = linear.run(x)
    assert np.isnan(got[1]).all() and (np.isnan(got) == np.isnan(expected)).all()
    assert (np.sign(got[np.isinf(expected)]) == np.sign(expected[np.isinf(expected)])).all()
    assert (np.isinf(got) == np.isinf(expected)).all()


def test_no_rows(precision):
    linear = Linear(np.random.default_rng(2), 4, 3, RELU, precision=precision)
    assert linear.run(np.zeros((0, 4), np.float32)).shape == (0, 3)


def test_wrong_sizes_are_refused():
    linear = Linear(np.random.default_rng(3), 4, 3, NONE)
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match="threads"):
        linear.run(x, threads=0)
    with pytest.raises(ValueError, match="x_stride"):
        linear.run(x, x_stride=-1)
    with pytest.raises(ValueError, match="shape"):
        native.linear_packed_size(4, 3, HIGHWAY, 0)
    with pytest.raises(ValueError, match="epilogue"):
        native.linear_packed_size(4, 3, 3, 0)
    linear.inputs = 5
    with pytest.raises(ValueError, match="packed: expected linear"):
        linear.run(x)


def ulp_error(got, expected):
    return np.max(np.abs(got - expected) / np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64))


def activation(name, precision, x):
    """(what `name` computes, the same in float64)"""
    y, wide = np.empty_like(x), x.astype(np.float64)
    getattr(native, name)(address(x), address(y), x.size, precision)
    small = np.exp(-np.abs(wide))
    return y, np.tanh(wide) if name == "tanh" else np.where(wide < 0, small, 1) / (1 + small)


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
@pytest.mark.parametrize("stride", [8191, pytest.param(61, marks=pytest.mark.long)])
def test_activations(precision, name, stride):
    """Within 2 ulp; for 16-bit products a small relative error. On every `stride`-th float and the range in use."""
    patterns = np.arange(0, 2**32, stride, np.uint64).astype(np.uint32).view(np.float32)
    inputs = np.array_split(patterns[np.isfinite(patterns)], -(-len(patterns) // 2**20))
    for x in (*inputs, np.linspace(-105, 105, 400001, dtype=np.float32)):
        y, expected = activation(name, precision, x)
        if precision == HIGHEST:
            assert ulp_error(y, expected) <= 2
            continue
        tiny = np.abs(expected) < 2.0**-126
        relative = np.abs(y - expected)[~tiny] / np.abs(expected[~tiny])
        assert np.max(relative, initial=0) <= {HIGH: 2e-6, MEDIUM: 6e-5}[precision]
        assert np.max(np.abs(y - expected)[tiny], initial=0) <= 2.0**-126
    assert precision == HIGHEST or ulp_error(y[~tiny], expected[~tiny]) > 2  # cheaper forms than those of `highest`


@pytest.mark.parametrize("name, at_infinity", [("sigmoid", (1, 0)), ("tanh", (1, -1))])
def test_activations_at_the_ends(precision, name, at_infinity):
    y, _ = activation(name, precision, np.array([np.inf, -np.inf, np.nan], np.float32))
    assert tuple(y[:2]) == at_infinity and np.isnan(y[2])
