"""Products with a bias, highway layers and activations of every engine here, against float64."""

import dataclasses

import numpy as np
import pytest
import torch

from elmo_fast.ops.cpu.linear import pack
from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.testing import relative_error
from tests.support.engines import HIGHEST, NATIVE, REFERENCE, TILES, Engine, isa, native, needs_native
from tests.support.grid import grid
from tests.support.models import options
from tests.support.op_cases import Case, char_cnn_case, lstm_case, normal

NONE, RELU, HIGHWAY = 0, 1, 2  # epilogues
ENGINES = [*HIGHEST, *TILES]


def linear_case(rows, inputs, outputs):
    sizes = {"x": (rows, inputs), "weight": (inputs, outputs), "bias": (outputs,)}
    return Case({name: normal(*size, seed=len(name)) + 0.5 for name, size in sizes.items()}, linear)


def highway_case(rows=9, size=33):
    sizes = {"x": (rows, size), "w_carry": (size, size), "b_carry": (size,), "w_transform": (size, size),
             "b_transform": (size,)}
    return Case({name: normal(*shape, seed=len(name), scale=0.25) for name, shape in sizes.items()}, highway)


@pytest.mark.parametrize("case", [
    highway_case(), *(linear_case(*sizes) for sizes in [(1, 1, 1), (9, 33, 17), (70, 300, 37), (300, 16, 64)])])
def test_ops_agree_with_float64(case):
    expected, = case.run(REFERENCE)
    for engine in (Engine("torch"), Engine("auto"), *ENGINES):
        assert relative_error(case.run(engine)[0], expected) < engine.limits[0], engine
    case.check(Engine("torch"), NATIVE)
    none = dataclasses.replace(case, operands=case.operands | {"x": case.operands["x"][:0]})
    none.check(Engine("torch"), NATIVE)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_shut_gate_keeps_the_input(backend):
    x, w_c, b_c, w_t, b_t = (each.float() for each in highway_case().operands.values())
    assert torch.equal(highway(x, w_c * 0, b_c * 0 - 800, w_t, b_t, backend=backend), x)


@pytest.mark.parametrize("engine", [Engine("reference", dtype=torch.float16), Engine("torch", dtype=torch.bfloat16),
                                    Engine(dtype=torch.float16), Engine(dtype=torch.bfloat16)], ids=str)
def test_16_bit_operands_compute_in_fp32_from_their_rounded_values(engine):
    for case in (linear_case(5, 7, 6), highway_case(), lstm_case(starts=True), char_cnn_case(options())):
        rounded = {name: each.to(engine.dtype).double() for name, each in case.operands.items()}
        expected = dataclasses.replace(case, operands=rounded).run(REFERENCE)
        for found, truth in zip(case.run(engine), expected):
            assert found.dtype == torch.float32 and relative_error(found, truth) < engine.limits[0]


def test_float64_and_gradients_of_other_types_go_elsewhere():
    x, weight, bias = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True), torch.zeros(4)
    assert linear(x, weight, bias).requires_grad and linear(x, weight.half(), bias).requires_grad
    with pytest.raises(RuntimeError, match="is not available: the native kernels have gradients in float32 only"):
        linear(x, weight.half(), bias, backend="native")
    with pytest.raises(RuntimeError, match="an operand is float64"):
        linear(x.double(), weight.detach().double(), bias.double(), backend="native")
    with torch.no_grad():
        assert torch.equal(linear(x, weight, bias, backend="native"), torch.full((2, 4), 3.0))


# ---- the native product, through its own arguments -------------------------------------------------------------------


def draw(inputs, outputs, epilogue, seed=0):
    """W [K, M], b [M] and, for a highway layer, Wt and bt."""
    return [normal(*shape, seed=seed + k).float() for k, shape in
            enumerate([(inputs, outputs), (outputs,)] * (2 if epilogue == HIGHWAY else 1))]


def product(engine, tensors, epilogue, x, pad=0, **changes):
    """[rows, M]; `pad` floats beyond each row must stay NaN."""
    with isa(engine.isa):
        (inputs, outputs), packed = tensors[0].shape, pack(tensors, epilogue, engine.precision)
        y = torch.full((changes.get("rows", len(x)), outputs + pad), torch.nan)
        native.linear_forward(**dict(
            input=inputs, output=outputs, epilogue=epilogue, precision=PRECISIONS.index(engine.precision),
            packed=packed.data_ptr(), packed_size=packed.numel(), x=x.data_ptr(), rows=len(x), x_stride=inputs,
            y=y.data_ptr(), y_stride=outputs + pad, threads=1) | changes)
    assert y[:, outputs:].isnan().all()
    return y[:, :outputs]


def exact(tensors, epilogue, x):
    w, b, *transform = (0 if each is None else each.double() for each in tensors)
    z, x = x.double() @ w + b, x.double()
    if epilogue == HIGHWAY:
        gate = z.sigmoid()
        return gate * (x @ transform[0] + transform[1]).relu() + (1 - gate) * x
    return z.relu() if epilogue == RELU else z


def limit(engine):
    return 1e-6 if engine.precision == "highest" else engine.limits[0]


@pytest.mark.parametrize("engine, epilogue, size, rows", grid(
    ENGINES, [NONE, RELU, HIGHWAY], [(1, 1), (16, 32), (37, 11), (700, 70), (512, 512)], [1, 5, 14, 15, 100, 1000]))
def test_product(engine, epilogue, size, rows):
    inputs, outputs = size if epilogue != HIGHWAY else (size[0], size[0])
    if engine in TILES and rows * inputs * outputs > 1e7:
        rows = rows // 10 + 3  # an emulation of tiles is slow
    x, tensors = normal(rows, inputs, seed=9).float(), draw(inputs, outputs, epilogue)
    found = product(engine, tensors, epilogue, x, pad=3)
    assert relative_error(found, exact(tensors, epilogue, x)) <= limit(engine)
    for threads in (2, 3, 5):
        assert torch.equal(product(engine, tensors, epilogue, x, threads=threads), found)
    for k in (0, rows // 2, rows - 1):
        assert torch.equal(product(engine, tensors, epilogue, x[k : k + 1])[0], found[k])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_sliding_window_and_no_bias(engine):
    x, tensors = normal(16 * 50).float(), [draw(48, 20, NONE)[0], None]
    windows = x.unfold(0, 48, 16)
    found = product(engine, tensors, NONE, x, rows=len(windows), x_stride=16, threads=2)
    assert relative_error(found, exact(tensors, NONE, windows)) <= limit(engine)
    assert product(engine, draw(4, 3, RELU), RELU, torch.zeros(0, 4)).shape == (0, 3)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("epilogue", [NONE, HIGHWAY])
@pytest.mark.parametrize("size", [6, 40])  # values put one by one, and sixteen at a time
def test_nan_and_infinity_pass(engine, epilogue, size):
    x, tensors = normal(5, size, seed=8).float(), draw(size, size, epilogue)
    x[1, 2], x[2, 3], x[3, 4] = torch.nan, torch.inf, -torch.inf
    if engine.precision != "medium" and epilogue == NONE:  # the largest bf16 is smaller
        x[4, 5] = 3.4e38
    found, expected = product(engine, tensors, epilogue, x), exact(tensors, epilogue, x).float()
    assert found[1].isnan().all() and torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.equal(found[expected.isinf()], expected[expected.isinf()])


@pytest.mark.parametrize("engine", HIGHEST, ids=str)
def test_denormals_follow_ieee(engine):
    tiny = torch.full((1, 3), 1e-42)
    found = product(engine, [torch.ones(3, 2), torch.zeros(2)], NONE, tiny)
    assert torch.equal(found, tiny.double().sum(1, keepdim=True).float().expand(1, 2))


@needs_native
@pytest.mark.parametrize("change, error, message", [
    ({"threads": 0}, ValueError, "threads"), ({"x_stride": -1}, ValueError, "x_stride"),
    ({"input": 5}, ValueError, "packed: expected linear"),
    ({"threads": "x"}, TypeError, r"linear_forward\(\): threads: unexpected value 'x'"),
    ({"row": 1}, TypeError, r"linear_forward\(\) has no argument 'row'"),
])
def test_wrong_arguments_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        product(NATIVE, draw(4, 3, NONE), NONE, torch.zeros(2, 4), **change)


@needs_native
def test_what_cannot_be_packed_or_called_is_refused():
    with pytest.raises(ValueError, match="shape"):
        native.linear_packed_size(4, 3, HIGHWAY, 0)
    with pytest.raises(ValueError, match="epilogue"):
        native.linear_packed_size(4, 3, 3, 0)
    with pytest.raises(TypeError, match=r"linear_forward\(\) misses the argument 'input'"):
        native.linear_forward()


# ---- activations -----------------------------------------------------------------------------------------------------


def ulp_error(got, expected):
    return np.max(np.abs(got - expected) / np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64))


def activation(name, engine, x):
    """(what `name` computes, the same in float64)"""
    y, wide = np.empty_like(x), x.astype(np.float64)
    with isa(engine.isa):
        getattr(native, name)(x.ctypes.data, y.ctypes.data, x.size, PRECISIONS.index(engine.precision))
    small = np.exp(-np.abs(wide))
    return y, np.tanh(wide) if name == "tanh" else np.where(wide < 0, small, 1) / (1 + small)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
@pytest.mark.parametrize("stride", [8191, pytest.param(61, marks=pytest.mark.long)])
def test_activations(engine, name, stride):
    """Within 2 ulp; for 16-bit products a small relative error. On every `stride`-th float and the range in use."""
    patterns = np.arange(0, 2**32, stride, np.uint64).astype(np.uint32).view(np.float32)
    inputs = np.array_split(patterns[np.isfinite(patterns)], -(-len(patterns) // 2**20))
    for x in (*inputs, np.linspace(-105, 105, 400001, dtype=np.float32)):
        y, expected = activation(name, engine, x)
        if engine in HIGHEST:
            assert ulp_error(y, expected) <= 2
            continue
        tiny = np.abs(expected) < 2.0**-126
        relative = np.abs(y - expected)[~tiny] / np.abs(expected[~tiny])
        assert np.max(relative, initial=0) <= {"high": 2e-6, "medium": 6e-5}[engine.precision]
        assert np.max(np.abs(y - expected)[tiny], initial=0) <= 2.0**-126
    assert engine in HIGHEST or ulp_error(y[~tiny], expected[~tiny]) > 2  # cheaper forms than those of `highest`


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("name, at_infinity", [("sigmoid", (1, 0)), ("tanh", (1, -1))])
def test_activations_at_the_ends(engine, name, at_infinity):
    y, _ = activation(name, engine, np.array([np.inf, -np.inf, np.nan], np.float32))
    assert tuple(y[:2]) == at_infinity and np.isnan(y[2])
