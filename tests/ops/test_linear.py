"""Linear and highway layers of every available engine against float64."""

import dataclasses

import numpy as np
import pytest
import torch

from elmo_fast.ops.linear import highway, linear
from elmo_fast.testing import relative_error
from tests.support import engines
from tests.support.engines import (
    BF16_DOTS,
    BF16_WEIGHTS,
    HIGHEST,
    LOW,
    NATIVE,
    REFERENCE,
    TILES,
    Engine,
)
from tests.support.grid import grid
from tests.support.models import options
from tests.support.op_cases import (
    Case,
    assert_same_nonfinite,
    char_cnn_case,
    highway_case,
    keep_from_zero,
    linear_case,
    lstm_case,
    on_threads,
)

ENGINES = [*HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW]


def with_x(case, x):
    return dataclasses.replace(case, operands=case.operands | {"x": x})


@pytest.mark.parametrize("engine, make, size, rows", grid(
    [Engine("torch"), Engine("auto"), *ENGINES, *engines.TRITON], [linear_case, highway_case],
    [(1, 1), (16, 32), (33, 17), (37, 11), (700, 70), (512, 512)], [1, 5, 14, 15, 100, 1000], only_pairs=engines.TWINS,
    long=engines.TRITON))
def test_agrees_with_float64(engine, make, size, rows):
    if engine in (*TILES, *LOW, *engines.TRITON) and rows * max(size) ** 2 > 1e7:
        rows = rows // 10 + 3  # an emulation is slow
    case = make(rows, *size)
    actual, = case.run(engine)
    assert relative_error(actual, case.run(REFERENCE)[0]) <= engine.limits[0]
    if engine in ENGINES:
        for threads in (2, 3, 5):
            assert torch.equal(on_threads(threads, case.run, engine)[0], actual)
        for k in (0, rows // 2, rows - 1):
            assert torch.equal(with_x(case, case.operands["x"][k : k + 1]).run(engine)[0][0], actual[k])


@pytest.mark.parametrize("case", [highway_case(), linear_case(9, 33, 17)])
def test_gradients_agree_with_float64(case):
    for variant in (case, with_x(case, case.operands["x"][:0])):
        variant.check(Engine("torch"), NATIVE)


@pytest.mark.parametrize("engine", [Engine("reference", dtype=torch.float16), Engine("torch", dtype=torch.bfloat16),
                                    Engine(dtype=torch.float16), Engine(dtype=torch.bfloat16)], ids=str)
def test_16_bit_operands_compute_in_fp32_from_their_rounded_values(engine):
    for case in (linear_case(5, 7, 6), highway_case(), lstm_case(starts=True), char_cnn_case(options())):
        rounded = {name: values.to(engine.dtype).double() for name, values in case.operands.items()}
        expected = dataclasses.replace(case, operands=rounded).run(REFERENCE)
        for actual, truth in zip(case.run(engine), expected):
            assert actual.dtype == torch.float32 and relative_error(actual, truth) < engine.limits[0]


@pytest.mark.parametrize("shapes, message", [
    ([(2, 3), (3,), (4,)], r"weight: expected a matrix, got shape \(3,\)"),
    ([(2, 4), (3, 4), (4,)], r"x: expected shape \(2, 3\), got \(2, 4\)"),
    ([(2, 3), (3, 4), (3,)], r"bias: expected shape \(4,\), got \(3,\)"),
])
def test_mismatched_shapes_are_refused(shapes, message):
    for op, extra in ((linear, []), (highway, [torch.zeros(3, 4), torch.zeros(4)])):
        with pytest.raises(ValueError, match=f"^{message}"):
            op(*map(torch.zeros, shapes), *extra)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("make", [linear_case, highway_case])
@pytest.mark.parametrize("size", [6, 40])  # single values, and vectors of sixteen
def test_nan_and_infinity_propagate(engine, make, size):
    case = make(5, size, size)
    x = case.operands["x"]
    x[1, 2], x[2, 3], x[3, 4] = torch.nan, torch.inf, -torch.inf
    if engine.precision != "medium" and make is linear_case:  # the largest bf16 is smaller
        x[4, 5] = 3.4e38
    if engine in LOW:
        keep_from_zero(values for name, values in case.operands.items() if name != "x")
    actual, expected = case.run(engine)[0], case.run(REFERENCE)[0].float()
    assert actual[1].isnan().all() and expected.isinf().any()
    assert_same_nonfinite(actual, expected)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("make", [linear_case, highway_case])
@pytest.mark.parametrize("rows, size", [(1, 6), (40, 40), (3, 1030)])  # single values, vectors, units of 512 bytes
@pytest.mark.parametrize("where", ["x", "weights", "x and weights"])
def test_infinities_beside_each_other(engine, make, rows, size, where):
    case, generator = make(rows, size, size), torch.Generator().manual_seed(size)
    matrices = [values for values in case.operands.values() if values.dim() == 2]
    keep_from_zero(matrices)
    for values in {"x": matrices[:1], "weights": matrices[1:]}.get(where, matrices):
        hit = torch.rand(values.shape, generator=generator) < 1.5 / size
        values[hit] = values[hit].sign() * torch.inf
    actual, expected = case.run(engine)[0], case.run(Engine("reference"))[0]
    assert expected.isnan().any() or rows == 1
    if engine.precision == "high":  # an infinity meets both parts of a number, whose signs may differ
        assert actual[expected.isnan()].isnan().all()
    else:
        assert_same_nonfinite(actual, expected)


def in_bytes(x):
    """x [R, K] quantized as in `low`: whole numbers and scales per row and 512 columns, both float64 [R, K]."""
    x = np.asarray(x, np.float32)
    scales = np.concatenate([np.abs(x[:, k : k + 512]).max(1, keepdims=True).repeat(len(x[0, k : k + 512]), 1)
                             for k in range(0, x.shape[1], 512)], 1)
    scales[scales < 2.0**-100] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(scales > 0, np.rint(x * (np.float32(127) / scales)), 0)
    return values.astype(np.float64), (scales / np.float32(127)).astype(np.float64)


def extreme(kind, rows, columns):
    """Operands at the limits of a byte: only the largest values, halves between whole numbers, one large value among
    small ones, or sizes from the smallest to the largest number."""
    random = np.random.default_rng(rows + columns)
    signs = random.choice([-1, 1], (rows, columns))
    if kind == "largest":
        return (signs if rows % 2 else np.ones((rows, columns))).astype(np.float32)
    if kind == "halves":
        x = random.integers(-127, 127, (rows, columns)) + 0.5
        x[:, ::512] = 127
        return x.astype(np.float32)
    if kind == "one large":
        x = random.normal(size=(rows, columns))
        x[:, ::300] = 1e4
        return x.astype(np.float32)
    return (random.normal(size=(rows, columns)) * 2.0 ** random.integers(-126, 60, (rows, 1))).astype(np.float32)


@pytest.mark.parametrize("engine", LOW, ids=str)
@pytest.mark.parametrize("kind", ["largest", "halves", "one large", "any size"])
@pytest.mark.parametrize("rows, depth, columns", [(1, 1, 1), (7, 4, 5), (40, 513, 33), (17, 1600, 40)])
def test_sums_of_bytes_are_exact(engine, kind, rows, depth, columns):
    x, weight = extreme(kind, rows, depth), extreme(kind, columns, depth)
    operands = {"x": torch.from_numpy(x), "weight": torch.from_numpy(weight).T.contiguous(),
                "bias": torch.linspace(-1, 1, columns)}
    (left, row_scales), (right, column_scales) = in_bytes(x), in_bytes(weight)
    expected = (left * row_scales) @ (right * column_scales).T + operands["bias"].double().numpy()
    size = np.abs(left * row_scales) @ np.abs(right * column_scales).T + 1
    actual, = Case(operands, linear).run(engine)
    assert (np.abs(actual.double().numpy() - expected) <= 3e-7 * size).all()


@pytest.mark.parametrize("engine", HIGHEST, ids=str)
def test_denormals_follow_ieee(engine):
    operands = {"x": torch.full((1, 3), 1e-42), "weight": torch.ones(3, 2), "bias": torch.zeros(2)}
    actual, = Case(operands, linear).run(engine)
    assert torch.equal(actual, operands["x"].double().sum(1, keepdim=True).float().expand(1, 2))
