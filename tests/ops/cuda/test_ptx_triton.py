"""The Triton kernels, run from the PTX of sm_80 and sm_90 that Triton compiles them to, against float64.

The project's own functions launch them: only `kernel[grid](...)` is replaced, by one that compiles the kernel ahead of
time as Triton would specialise it for these arguments and runs it on CPU tensors.
"""

import itertools

import pytest
import torch

from elmo_fast.ops.torch import lstm_pointwise as torch_lstm_pointwise
from elmo_fast.testing import relative_error
from tests.support.ptx_machine import machine
from tests.support.triton_on_ptx import LIMIT, OnPtx, configs, encoder_on_ptx, lstm_pointwise, products

SHAPES = {"highway": lambda tile: [(3 * tile.bm - 5, 256, 256)],
          "linear": lambda tile: [(tile.bm + 3, 208, tile.bn + 16), (tile.bm + 3, 256, 2 * tile.bn)],
          "char_cnn": lambda tile: [(tile.bm + 9, 14, tile.bn + 16)]}


def grid_of(form):
    """[(form, generation, operands, tile) of shipped configurations]: a few for the default run, the rest long."""
    kernel, result = "highway" if form == "linear" else form, {}
    for generation, operands, amount in itertools.product(configs.GENERATIONS, configs.OPERANDS, ("many", "few")):
        for at, tile in enumerate(configs.tiles(kernel, generation, operands, amount)):
            quick = operands == "fp16" and amount == "many" and at == 0
            name = f"{form}-sm_{generation}-{operands}-{tile.bm}x{tile.bn}x{tile.bk}-{tile.warps}-{tile.stages}"
            result.setdefault(name, pytest.param(form, generation, operands, tile, id=name,
                                                 marks=() if quick else pytest.mark.long))
    return [*result.values()]


@pytest.mark.parametrize("form,generation,operands,tile", [row for form in SHAPES for row in grid_of(form)])
def test_products(monkeypatch, form, generation, operands, tile):
    torch.manual_seed(0)
    encoder_on_ptx(monkeypatch, generation, tile)
    for shape in SHAPES[form](tile):
        assert relative_error(*products(form, operands, *shape)) < LIMIT[operands]


def exactly(name, *given):
    """The arguments of a step's kernel after it, and in float64 after the same in PyTorch."""
    exact = [each.double() if torch.is_tensor(each) and each.is_floating_point() else each for each in given]
    getattr(lstm_pointwise, name)(*given)
    getattr(torch_lstm_pointwise, name)(*exact)
    return zip(given, exact)


@pytest.mark.parametrize("generation", configs.GENERATIONS)
@pytest.mark.parametrize("dtype,limit", [(torch.float16, 5e-4), (torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
def test_pointwise(monkeypatch, generation, dtype, limit):
    machine()
    torch.manual_seed(0)
    for name in ("_gates", "_hidden"):
        stand_in = OnPtx(getattr(lstm_pointwise, name), generation, registers=64)
        monkeypatch.setattr(lstm_pointwise, name, stand_in)
    dim, projection, slots, rows = 700, 600, 5, 9
    meta = torch.tensor([[0, 3, -1, 8, 2], [1, 1, -1, 5, 7], [0, 1, 0, 0, 1]], dtype=torch.int32)
    after = torch.tensor([[0, 3, 1, 8, 2], [1, 1, 2, 5, 7], [0, 1, 0, 1, 0]], dtype=torch.int32)
    has_token = meta[:2] >= 0
    *_, c, m, _ = exactly(
        "gates", torch.randn(2, slots, 4 * dim), torch.randn(rows, 2, 4 * dim).to(dtype),
        torch.rand(rows, 2) if dtype == torch.float16 else None, torch.randn(2, 4 * dim), meta, torch.randn(2, dim),
        torch.randn(2, slots, dim), torch.zeros(2, slots, dim, dtype=dtype), 1.5)
    assert relative_error(*c) < 1e-6
    assert relative_error(*(each[has_token] for each in m)) < limit
    assert (c[1].abs() == 1.5).any() and (c[1].abs() < 1.5).any()
    *_, h, operand, out, _ = exactly(
        "hidden", torch.randn(2, slots, projection), meta, after, torch.randn(2, projection),
        torch.zeros(2, slots, projection), torch.zeros(2, slots, projection, dtype=dtype),
        torch.zeros(slots, 2, projection), 1.25)
    for found, value in (h, operand, (each.transpose(0, 1) for each in out)):
        limit = 1e-7 if found.dtype == torch.float32 else 5e-3
        assert relative_error(found[has_token], value[has_token]) < limit
