"""The char-CNN of every available engine, and its gradients, against the float64 reference."""

import pytest
import torch

from tests.support.engines import HIGHEST, REFERENCE, TORCH, TRITON, Engine
from tests.support.models import SHAPES, options
from tests.support.op_cases import char_cnn_case

WIDE = options(char_cnn={"filters": [[1, 33], [2, 4], [6, 47], [7, 3]]})
LONG = options(char_cnn={"embedding": {"dim": 48}, "filters": [[1, 3], [3, 20], [6, 5]]})  # sums of over 256 products
SIXTEEN = options(char_cnn={"embedding": {"dim": 16}, "filters": [[1, 32], [2, 32], [4, 40], [9, 17]]})
CASES = {name: SHAPES[name] for name in ("two layers", "tanh", "filters as wide as the projection", "short tokens",
                                         "one filter as wide as a token")}
CASES |= {"long": LONG, "sixteen": SIXTEEN, "wide": WIDE,
          "every width": options(char_cnn={"embedding": {"dim": 1}, "filters": [[width, 1] for width in range(1, 9)]}),
          "width 50": options(char_cnn={"embedding": {"dim": 24}, "filters": [[50, 3]]}),
          "dim 200": options(char_cnn={"embedding": {"dim": 200}, "filters": [[3, 4]], "max_characters_per_token": 8})}
ENGINES = [Engine("torch"), TORCH, *HIGHEST]
needs_triton = pytest.mark.skipif(not TRITON, reason="needs triton, nvcc, a C++ compiler and pybind11")


def random(*shape, seed=1, ids=262, **arguments):
    return torch.randint(0, ids, shape, generator=torch.Generator().manual_seed(seed), **arguments)


SHORT = torch.cat([random(9, 5, ids=261).clamp(min=1), torch.full((9, 20), 261)], dim=1)  # tokens of 5 characters


ROWS = {
    "any id": random(40, 50), "few ids": random(40, 50, ids=3), "padding alone": torch.full((3, 50), 261),
    "no token": torch.zeros(2, 50, dtype=torch.int64), "no rows": torch.zeros(0, 50, dtype=torch.int64),
    "as long as the widest": random(3, 9, dtype=torch.int32),
    "repeated": torch.tensor([[5, 7, 5, 7, 5, 7, 7, 5] + [261] * 4, [9] * 12, [9] * 6 + [261] * 6]),
    "both ends": torch.tensor([[1, 261], [261, 1], [0, 261], [261, 0]]).repeat(1, 9),
    "columns first": random(18, 9).t()}


def by_name(cases, *quick):
    """The cases as parameters; only `quick` ones run in the quick tier, since interpreting PTX is slow."""
    return [pytest.param(case, id=name, marks=() if name in quick else pytest.mark.long)
            for name, case in cases.items()]


@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_agrees_with_float64(sizes):
    char_cnn_case(sizes).check(*ENGINES)


@pytest.mark.parametrize("ids", ROWS.values(), ids=ROWS)
def test_rows_that_no_token_produces(ids):
    for sizes in (WIDE, SIXTEEN):
        char_cnn_case(sizes, ids).check(*ENGINES)


@needs_triton
@pytest.mark.long
@pytest.mark.parametrize("sizes", by_name(CASES, "tanh", "wide", "filters as wide as the projection"))
def test_triton_agrees_with_float64(sizes):
    char_cnn_case(sizes).check(*TRITON)


@needs_triton
@pytest.mark.long
@pytest.mark.parametrize("ids", by_name(ROWS, "padding alone", "no rows", "repeated", "both ends"))
def test_rows_that_no_token_produces_in_triton(ids):
    for sizes in (WIDE, SIXTEEN):
        char_cnn_case(sizes, ids).check(*TRITON)


@pytest.mark.parametrize("change", [
    lambda weight: weight * (len(weight) == 261), lambda weight: (weight * 8).round() / 8,
], ids=["kernels of zero: every window ties", "some windows tie"])
@pytest.mark.parametrize("ids", [None, random(30, 12) // 60 * 60, SHORT], ids=["tokens", "few ids", "short"])
def test_of_ties_the_first_takes_the_gradient_as_in_the_reference(change, ids):
    for sizes in (WIDE, LONG, SIXTEEN):
        char_cnn_case(sizes, ids, change).check(*ENGINES)


def test_learned_padding_is_used_where_it_is_largest():
    def change(weight):
        return torch.cat([weight[:260], weight[260:] * 0 + 9.0]) if len(weight) == 261 else weight.abs()

    sizes = options(char_cnn={"filters": [[1, 4], [3, 4], [7, 4]]})
    char_cnn_case(sizes, SHORT, change).check(*ENGINES)
    unpadded, expected = (char_cnn_case(sizes, ids, change).run(REFERENCE)[0] for ids in (SHORT[:, :7], SHORT))
    assert not torch.allclose(unpadded, expected)
