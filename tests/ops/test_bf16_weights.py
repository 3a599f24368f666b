"""`medium` without AMX: the bits of `highest` on weights that are rounded to bf16."""

import numpy as np
import pytest
import torch

from elmo_fast.ops.linear import highway, linear
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import make_schedule
from tests.support.engines import BF16_WEIGHTS, isa, needs_native

pytestmark = needs_native
SIZES = [(1, 1, 1), (3, 17, 5), (14, 300, 33), (40, 512, 70), (200, 257, 64)]
engines = pytest.mark.parametrize("engine", BF16_WEIGHTS, ids=str)


def bits(*values):
    return torch.from_numpy(np.array(values, np.uint32).view(np.float32))


# ties to even and to odd, both sides of ties, largest, subnormal, signed zeros, infinities, NaN in the low bits
EDGES = bits(0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0xbf808000, 0x7f7fffff, 0x7f7f7fff, 0x00000001, 0x00008000,
             0x00018000, 0x80000000, 0x7f800000, 0xff800000, 0x7f800001, 0xffc00000)


def drawn(generator, *shape):
    return torch.from_numpy(generator.normal(size=shape).astype(np.float32))


def rounded(weight):
    return weight.bfloat16().float()


def same(found, expected):
    return torch.equal(found.nan_to_num(7e9), expected.nan_to_num(7e9)) and torch.equal(found.isnan(), expected.isnan())


@engines
@pytest.mark.parametrize("rows, k, columns", SIZES)
def test_products(engine, rows, k, columns):
    generator = np.random.default_rng(rows)
    x, bias = drawn(generator, rows, k), drawn(generator, columns)
    weight, *gates = drawn(generator, k, columns), drawn(generator, k, k), drawn(generator, k, k)
    biases = drawn(generator, k), drawn(generator, k)
    with torch.no_grad(), isa(engine.isa):
        medium = linear(x, weight, bias, backend="native", precision="medium")
        assert same(medium, linear(x, rounded(weight), bias, backend="native", precision="highest"))
        assert not torch.equal(medium, linear(x, weight, bias, backend="native", precision="highest"))
        medium = highway(x, gates[0], biases[0], gates[1], biases[1], backend="native", precision="medium")
        assert same(medium, highway(x, rounded(gates[0]), biases[0], rounded(gates[1]), biases[1], backend="native",
                                    precision="highest"))


@engines
@pytest.mark.parametrize("rows", [1, 100])
def test_rounding(engine, rows):
    """Each edge alone in its column, times one."""
    weight = torch.diag(EDGES)
    x, bias = torch.ones(rows, 1), torch.zeros(1)
    with torch.no_grad(), isa(engine.isa):
        for edge in EDGES:
            found = linear(x, edge.view(1, 1), bias, backend="native", precision="medium")
            assert same(found, rounded(edge.view(1, 1)).expand(rows, 1) + 0)
        eye, zeros = torch.eye(len(EDGES)), torch.zeros(len(EDGES))
        assert same(linear(eye, weight, zeros, backend="native", precision="medium"),
                    linear(eye, rounded(weight), zeros, backend="native", precision="highest"))


@engines
@pytest.mark.parametrize("lengths", [[7], [5, 1, 9], [4] * 40])
@pytest.mark.parametrize("dim, projection", [(24, 10), (40, 40), (70, 33)])
def test_a_layer(engine, lengths, dim, projection):
    generator = np.random.default_rng(dim)
    has_projection = projection < dim

    def direction():
        return (drawn(generator, 2 * projection, 4 * dim) / 4, drawn(generator, 4 * dim),
                drawn(generator, dim, projection) / 4 if has_projection else None)

    weights = direction(), direction()
    of_bf16 = tuple((rounded(w), b, w_p if w_p is None else rounded(w_p)) for w, b, w_p in weights)
    schedule = make_schedule(lengths)
    inputs = drawn(generator, sum(lengths), 2 * projection)
    state = drawn(generator, len(lengths), 2 * projection), drawn(generator, len(lengths), 2 * dim)
    clips = {"cell_clip": 0.9, "proj_clip": 0.4}
    with torch.no_grad(), isa(engine.isa):
        found = projected_lstm(inputs, None, schedule, state, weights, backend="native", precision="medium", **clips)
        expected = projected_lstm(inputs, None, schedule, state, of_bf16, backend="native", **clips)
    assert same(found[0], expected[0]) and all(map(same, found[1], expected[1]))
    assert (found[1][1].abs() == 0.9).any()
