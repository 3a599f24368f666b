"""The Triton kernels, run from the PTX of sm_80 and sm_90 that Triton compiles them to, against float64.

The project's own functions launch them: only `kernel[grid](...)` is replaced, by one that compiles the kernel ahead of
time as Triton would specialise it for these arguments and runs it on CPU tensors.
"""

import itertools

import pytest
import torch

from elmo_fast.kernels import char_cnn, configs, lstm_pointwise
from elmo_fast.ops.torch import lstm_pointwise as torch_lstm_pointwise
from elmo_fast.testing import relative_error
from tests.support.ptx_machine import machine
from tests.support.triton_on_ptx import LIMIT, OnPtx, encoder_on_ptx, products

# (rows, inner, outputs) of products that a tile divides unevenly, and evenly
SHAPES = {"highway": lambda tile: [(3 * tile.bm - 5, 256, 256)],
          "linear": lambda tile: [(tile.bm + 3, 208, tile.bn + 16), (tile.bm + 3, 256, 2 * tile.bn)]}


def grid_of(kernel, *first):
    """[(*first, generation, operands, tile) of shipped configurations]: a few for the default run, the rest long."""
    result = {}
    for generation, operands, amount in itertools.product(configs.GENERATIONS, configs.OPERANDS, ("many", "few")):
        for at, tile in enumerate(configs.tiles(kernel, generation, operands, amount)):
            quick = operands == "fp16" and amount == "many" and at == 0
            name = f"sm_{generation}-{operands}-{tile.bm}x{tile.bn}x{tile.bk}-{tile.warps}-{tile.stages}"
            result.setdefault(name, pytest.param(*first, generation, operands, tile, id="-".join((*first, name)),
                                                 marks=() if quick else pytest.mark.long))
    return [*result.values()]


@pytest.mark.parametrize("form,generation,operands,tile", [row for form in SHAPES for row in grid_of("highway", form)])
def test_products(monkeypatch, form, generation, operands, tile):
    torch.manual_seed(0)
    encoder_on_ptx(monkeypatch, generation, tile)
    for shape in SHAPES[form](tile):
        assert relative_error(*products(form, operands, *shape)) < LIMIT[operands]


@pytest.mark.parametrize("generation,operands,tile", grid_of("char_cnn"))
def test_char_cnn(monkeypatch, generation, operands, tile):
    torch.manual_seed(0)
    encoder_on_ptx(monkeypatch, generation, tile)
    characters, vocabulary, tokens = 14, 50, tile.bm + 9
    spec = [(1, 16), (2, 32), (3, 64), (7, tile.bn + 16)]
    embed = torch.randn(vocabulary, 16) * 0.5
    weights = [torch.randn(1, width, 16, count) * 0.3 for width, count in spec]
    biases = [torch.randn(count) * 0.1 for _, count in spec]
    packed = char_cnn.PackedFilters(embed, weights, biases, operands)
    lengths = torch.randint(1, characters + 1, (tokens,))
    ids = torch.randint(1, vocabulary + 1, (tokens, characters))
    ids[torch.arange(characters) >= lengths[:, None]] = 0
    out = torch.full((tokens, sum(packed.counts)), float("nan"), dtype=packed.table.dtype)
    char_cnn.char_cnn(ids, packed, "relu", 0, out)
    x = packed.table.double()[ids]
    rounded = [weight[0].to(packed.table.dtype).double() for weight in weights]
    expected = torch.cat([torch.relu(torch.einsum("npew,wef->npf", x.unfold(1, len(weight), 1), weight).amax(1) + bias)
                          for weight, bias in zip(rounded, biases)], 1)
    assert relative_error(out, expected) < LIMIT[operands]


STEP = [pytest.param(generation, dtype, id=f"sm_{generation}-{dtype}",
                     marks=() if dtype == torch.float16 else pytest.mark.long)
        for generation in configs.GENERATIONS for dtype in (torch.float32, torch.float16, torch.bfloat16)]


@pytest.mark.parametrize("generation,dtype", STEP)
def test_gates(monkeypatch, generation, dtype):
    machine()
    torch.manual_seed(0)
    monkeypatch.setattr(lstm_pointwise, "_gates", OnPtx(lstm_pointwise._gates, generation, registers=64))
    dim, slots, rows = 700, 5, 9
    zh, z = torch.randn(2, slots, 4 * dim), torch.randn(rows, 2, 4 * dim).to(dtype)
    bias, initial = torch.randn(2, 4 * dim), torch.randn(2, dim)
    scale = torch.rand(rows, 2) if dtype == torch.float16 else None
    meta = torch.tensor([[0, 3, -1, 8, 2], [1, 1, -1, 5, 7], [0, 1, 0, 0, 1]], dtype=torch.int32)
    c, m = torch.randn(2, slots, dim), torch.zeros(2, slots, dim, dtype=dtype)
    expected = [each.double() for each in (c, m)]
    lstm_pointwise.gates(zh, z, scale, bias, meta, initial, c, m, 1.5)
    torch_lstm_pointwise.gates(zh.double(), z.double(), None if scale is None else scale.double(), bias.double(), meta,
                               initial.double(), *expected, 1.5)
    has_token = meta[:2] >= 0
    assert relative_error(c, expected[0]) < 1e-6
    assert relative_error(m[has_token], expected[1][has_token]) < {torch.float32: 1e-6, torch.float16: 5e-4,
        torch.bfloat16: 5e-3}[dtype]
    assert (expected[0].abs() == 1.5).any() and (expected[0].abs() < 1.5).any()


@pytest.mark.parametrize("generation,dtype", STEP)
def test_hidden(monkeypatch, generation, dtype):
    machine()
    torch.manual_seed(0)
    monkeypatch.setattr(lstm_pointwise, "_hidden", OnPtx(lstm_pointwise._hidden, generation, registers=64))
    projection, slots = 600, 4
    r, initial = torch.randn(2, slots, projection), torch.randn(2, projection)
    meta = torch.tensor([[0, 3, -1, 8], [1, 1, -1, 5], [0, 0, 0, 0]], dtype=torch.int32)
    after = torch.tensor([[0, 3, 1, 8], [1, 1, 2, 5], [0, 1, 0, 1]], dtype=torch.int32)
    h, operand, out = (torch.zeros(2, slots, projection), torch.zeros(2, slots, projection, dtype=dtype),
                       torch.zeros(slots, 2, projection))
    expected = [each.double() for each in (h, operand, out)]
    lstm_pointwise.hidden(r, meta, after, initial, h, operand, out, 1.25)
    torch_lstm_pointwise.hidden(r.double(), meta, after, initial.double(), *expected, 1.25)
    has_token = meta[:2] >= 0
    for found, value in zip((h, operand, out.transpose(0, 1)), (*expected[:2], expected[2].transpose(0, 1))):
        assert relative_error(found[has_token], value[has_token]) < (1e-7 if found.dtype == torch.float32 else 5e-3)
