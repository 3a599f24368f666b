"""The C++ product y = epilogue(x W + b) and the activations, against NumPy in float64."""

import numpy as np
import pytest
from tests.support.native_lstm import HIGH, HIGHEST, MEDIUM, address, isa, native, reachable_isas, tile_isas
from elmo_fast.testing.tolerances import AGAINST_FLOAT64

from elmo_fast.ops.precision import PRECISIONS

NONE, RELU, HIGHWAY = 0, 1, 2


TOLERANCE = {"highest": 1e-6, "high": AGAINST_FLOAT64["high-amx"], "medium": AGAINST_FLOAT64["medium-bf16"]}
EVERYWHERE = [(name, "highest") for name in reachable_isas()] + [
    (name, precision) for name in tile_isas() for precision in ("high", "medium")]


@pytest.fixture(params=reachable_isas())
def each_isa(request, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_CPU_ISA", request.param)
    return request.param


@pytest.fixture(params=EVERYWHERE, ids="-".join)
def each_precision(request, monkeypatch):
    """The precision, on every instruction set that runs it."""
    name, precision = request.param
    monkeypatch.setenv("ELMO_FAST_CPU_ISA", name)
    return precision


class Linear:
    """W [K, M], b [M] and, for a highway layer, Wt and bt."""

    def __init__(self, rng, inputs, outputs, epilogue, bias=True, precision="highest"):
        self.inputs, self.outputs, self.epilogue = inputs, outputs, epilogue
        self.level = PRECISIONS.index(precision)
        pairs = 2 if epilogue == HIGHWAY else 1
        self.w = [rng.standard_normal((inputs, outputs)).astype(np.float32) for _ in range(pairs)] + [None]
        self.b = [rng.standard_normal(outputs).astype(np.float32) if bias else None for _ in range(pairs)] + [None]
        self.packed = np.full(native.linear_packed_size(inputs, outputs, epilogue, self.level), 255, np.uint8)
        native.linear_pack(
            inputs, outputs, epilogue, self.level, address(self.w[0]), address(self.b[0]), address(self.w[1]),
            address(self.b[1]), address(self.packed), self.packed.size,
        )  # fmt: skip

    def run(self, x, threads=1, rows=None, x_stride=None, pad=0):
        """[rows, M]; `pad` floats beyond each row must stay NaN."""
        rows = len(x) if rows is None else rows
        y = np.full((rows, self.outputs + pad), np.nan, np.float32)
        native.linear_forward(
            input=self.inputs, output=self.outputs, epilogue=self.epilogue, precision=self.level,
            packed=address(self.packed), packed_size=self.packed.size, x=address(x), rows=rows,
            x_stride=x.shape[-1] if x_stride is None else x_stride, y=address(y), y_stride=y.shape[1], threads=threads,
        )  # fmt: skip
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


def error(got, expected):
    assert np.isfinite(got).all()
    return np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-300)


@pytest.mark.parametrize("epilogue", [NONE, RELU, HIGHWAY])
@pytest.mark.parametrize("inputs,outputs", [(1, 1), (16, 32), (37, 11), (700, 70), (512, 512)])
@pytest.mark.parametrize("rows", [1, 5, 14, 15, 100, 1000])
def test_product(each_precision, epilogue, inputs, outputs, rows):
    if each_precision != "highest" and rows * inputs * outputs > 1e7:
        rows = rows // 10 + 3  # an emulation of tiles is slow
    rng = np.random.default_rng(rows)
    linear = Linear(rng, inputs, inputs if epilogue == HIGHWAY else outputs, epilogue, precision=each_precision)
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    got = linear.run(x, pad=3)
    assert error(got, linear.reference(x)) <= TOLERANCE[each_precision]
    for threads in (2, 3, 5):
        assert (linear.run(x, threads=threads) == got).all()
    for k in (0, rows // 2, rows - 1):
        assert (linear.run(x[k : k + 1]) == got[k]).all()


def test_sliding_window_and_no_bias(each_precision):
    rng = np.random.default_rng(0)
    linear = Linear(rng, 48, 20, NONE, bias=False, precision=each_precision)
    x = rng.standard_normal(16 * 50).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, 48)[::16]
    got = linear.run(x, rows=len(windows), x_stride=16, threads=2)
    assert error(got, linear.reference(windows)) <= TOLERANCE[each_precision]


@pytest.mark.parametrize("epilogue", [NONE, HIGHWAY])
@pytest.mark.parametrize("size", [6, 40])  # values put one by one, and sixteen at a time
def test_nan_and_infinity_pass(each_precision, epilogue, size):
    linear = Linear(np.random.default_rng(1), size, size, epilogue, precision=each_precision)
    x = np.random.default_rng(2).standard_normal((5, size)).astype(np.float32)
    x[1, 2], x[2, 3], x[3, 4] = np.nan, np.inf, -np.inf
    if each_precision != "medium" and epilogue == NONE:  # the largest bf16 is smaller
        x[4, 5] = 3.4e38
    with np.errstate(invalid="ignore", over="ignore"):
        expected = linear.reference(x).astype(np.float32)
    got = linear.run(x)
    assert np.isnan(got[1]).all() and (np.isnan(got) == np.isnan(expected)).all()
    assert (np.sign(got[np.isinf(expected)]) == np.sign(expected[np.isinf(expected)])).all()
    assert (np.isinf(got) == np.isinf(expected)).all()


def test_no_rows(each_isa):
    linear = Linear(np.random.default_rng(2), 4, 3, RELU)
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


def exact_activation(name, x):
    wide = x.astype(np.float64)
    small = np.exp(-np.abs(wide))
    return np.tanh(wide) if name == "tanh" else np.where(wide < 0, small, 1) / (1 + small)


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_activations_within_two_ulp(each_isa, name):
    """A sample over all bit patterns and the range in use; tests/native/activation_error.cpp does all of them."""
    patterns = np.arange(0, 2**32, 8191, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([patterns[np.isfinite(patterns)], np.linspace(-105, 105, 400001, dtype=np.float32)])
    y = np.empty_like(x)
    getattr(native, name)(address(x), address(y), x.size, HIGHEST)
    assert ulp_error(y, exact_activation(name, x)) <= 2


@pytest.mark.parametrize("tiles", tile_isas())
@pytest.mark.parametrize("precision, limit", [(HIGH, 2e-6), (MEDIUM, 6e-5)])
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_activations_of_16_bit_products_have_a_small_relative_error(tiles, precision, limit, name):
    patterns = np.arange(0, 2**32, 8191, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([patterns[np.isfinite(patterns)], np.linspace(-105, 105, 400001, dtype=np.float32)])
    y = np.empty_like(x)
    with isa(tiles):
        getattr(native, name)(address(x), address(y), x.size, precision)
    expected = exact_activation(name, x)
    normal = np.abs(expected) >= 2.0**-126
    assert np.max(np.abs(y - expected)[normal] / np.abs(expected[normal])) <= limit
    assert np.max(np.abs(y - expected)[~normal]) <= 2.0**-126
    assert ulp_error(y[normal], expected[normal]) > 2  # the cheaper forms, not those of `highest`


@pytest.mark.parametrize("name,at_infinity", [("sigmoid", (1, 0)), ("tanh", (1, -1))])
@pytest.mark.parametrize("precision", [HIGHEST, HIGH, MEDIUM])
def test_activations_at_the_ends(name, at_infinity, precision):
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    for one in reachable_isas() if precision == HIGHEST else tile_isas():
        y = np.empty_like(x)
        with isa(one):
            getattr(native, name)(address(x), address(y), x.size, precision)
        assert tuple(y[:2]) == at_infinity and np.isnan(y[2])
