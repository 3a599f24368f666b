"""The Triton kernels, run from the PTX of sm_80 and sm_90 that Triton compiles them to, against float64.

The ops of the char encoder launch them, on CPU tensors: every configuration, odd shapes, NaN, batch mates, edits,
gradients. Then the two small kernels of an LSTM step, value by value; test_cuda_lstm_paths runs the LSTM on them.
"""

import itertools

import pytest
import torch

from elmo_fast.ops.torch import char_cnn as torch_char_cnn
from elmo_fast.ops.torch import lstm_pointwise as torch_lstm_pointwise
from elmo_fast.testing import GRADIENT_AGAINST_FLOAT64, relative_error
from tests.support import cuda_ops, triton_on_ptx
from tests.support.triton_on_ptx import PRECISIONS, Case, assert_close, configs, conv, layer, on_ptx, words


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    on_ptx(monkeypatch, 80)
    with cuda_ops.registered_on_cpu():
        yield


EVERY_WIDTH, PAIRS = [[width, 1] for width in range(1, 9)], [[1, 261], [261, 1], [0, 261], [261, 0]]
CASES = {
    "odd": conv(None, [[1, 3], [2, 6], [5, 7], [7, 33]], 5), "tanh": conv(None, [[2, 17], [4, 40]], 16, "tanh"),
    "width 50": conv(words(50), [[50, 3]], 24), "dim 200": conv(words(8), [[3, 4]], 200),
    "every width": conv(words(9), EVERY_WIDTH, 1), "many": conv(words(5, [f"{n:x}" for n in range(70)])),
    "none": conv(words()[:0]), "int32": conv(words().int()), "both ends": conv(torch.tensor(PAIRS).repeat(1, 9)),
    "any id": conv(torch.randint(0, 262, (9, 18), generator=torch.Generator().manual_seed(1))),
    "padding": conv(torch.full((3, 18), 261)), "columns first": conv(words().t().contiguous().t()),
    **{f"{op} {rows} x {size}": layer(op, rows, size, None if op == "highway" else 19)
       for op in ("highway", "linear") for rows, size in ((0, 33), (1, 16), (33, 37), (70, 40))},
}
every_precision = pytest.mark.parametrize("name", PRECISIONS)


@pytest.mark.parametrize("name", ["ieee", "fp16"])  # filters in pieces, and kept on chip
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_agree_with_float64(name, case):
    case.check(name)


@every_precision
@pytest.mark.parametrize("case, row", [(conv(), ord("f")), (layer("highway", 9, 33), 2)], ids=["char_cnn", "highway"])
def test_nan_and_infinity_go_where_the_reference_has_them(name, case, row):
    nan = float("nan")
    case.tensors[0][row, 5], case.tensors[1][..., 1, 3], case.tensors[-1][-1] = nan, float("-inf"), nan
    assert case.check(name).isnan().any() and not case.run(name).isnan().all()


@every_precision
def test_learned_padding_batch_mates_and_edits(name):
    case = conv(filters=[[1, 4], [4, 19]])
    case.tensors[0][260] = 9.0  # joins the maximum where a window of padding exists, and only there
    together = case.check(name)
    alone = [Case("char_cnn", case.tensors, row[None]).check(name) for row in case.ids]
    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(Case("char_cnn", case.tensors, case.ids.flip(0)).check(name).flip(0), together)
    outside, inside = case.ids.clone(), case.ids.clone()
    outside[:3, 1], inside[:3, 1] = torch.tensor([-5, 262, 2**40]), torch.tensor([0, 261, 261])
    given = [tensor.float() for tensor in case.tensors]
    runs = [Case("char_cnn", [], ids).run(name, given) for ids in (outside, inside)]
    assert torch.equal(*runs)
    given[1].mul_(2)
    assert not torch.equal(Case("char_cnn", [], inside).run(name, given), runs[1])


def gradients(case, name, kinds):
    leaves = [tensor.to(kind).clone().requires_grad_() for tensor, kind in zip(case.tensors, kinds)]
    out = case.run(name, leaves).float() if name else case.run(None, leaves)
    out = out.sin() if case.op != "char_cnn" else out
    (out * torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [tensor.grad for tensor in leaves]


@pytest.mark.parametrize("how", ["as it is", "in pieces", "tanh", "bf16", "highway ieee", "highway bf16",
                                 "linear tf32"])
def test_gradients_agree_with_the_reference(how, monkeypatch):
    case, kinds = conv(None, [[1, 3], [3, 4], [6, 5]]), [torch.float32] * 7
    name, limit = "ieee", GRADIENT_AGAINST_FLOAT64
    if how in ("tanh", "bf16"):  # its slope where it saturates, 1 - tanh(x)^2, is all rounding in fp32
        case.activation, case.tensors[1::2] = "tanh", [tensor / 8 for tensor in case.tensors[1::2]]
    if how == "in pieces":
        monkeypatch.setattr(torch_char_cnn, "_WINDOWS_AT_ONCE", 60)
    elif how == "bf16":
        kinds[0] = kinds[3] = torch.bfloat16
        case.tensors = [tensor.bfloat16().double() for tensor in case.tensors]
        name, limit = "bf16", triton_on_ptx.LIMITS["bf16"]
    elif " " in how and how[0] in "hl":
        op, name = how.split()
        case, limit = layer(op, 9, 33, None if op == "highway" else 5), {"ieee": 1e-5, "tf32": 2e-3, "bf16": 2e-2}[name]
    for ours, exact, kind in zip(gradients(case, name, kinds), gradients(case, None, [torch.float64] * 7), kinds):
        assert ours.dtype == kind and exact.abs().sum() > 0 and relative_error(ours, exact) < limit


@pytest.mark.parametrize("operands", ["ieee", "bf16"])
def test_the_ops_are_registered_well(operands):
    parts = conv(None, [[1, 3], [3, 4]]).tensors, layer("highway", 5, 7).tensors
    (embed, *filters), row = ([tensor.float().requires_grad_() for tensor in part] for part in parts)
    settings = PRECISIONS[operands]
    for op, arguments in (("char_cnn", (words()[:2], embed, filters[::2], filters[1::2], "relu", *settings, False)),
                          ("highway", (row[0], row[1:], None, *settings)),
                          ("linear", (row[0], row[1:3], None, 7, *settings))):
        torch.library.opcheck(getattr(torch.ops.elmo_fast, op).default, arguments)


# ---- every configuration that ships ------------------------------------------------------------


SHAPES = {"highway": lambda tile: [layer("highway", 3 * tile.bm - 5, 256)],
          "linear": lambda tile: [layer("linear", tile.bm + 3, 208, tile.bn + 16),
                                  layer("linear", tile.bm + 3, 256, 2 * tile.bn)],
          "char_cnn": lambda tile: [conv(words(14, [f"{n:x}" * (n % 5) for n in range(tile.bm + 9)]),
                                         [(1, 16), (2, 32), (3, 64), (7, tile.bn + 16)])]}


def grid_of(form):
    """[(form, generation, operands, tile) of shipped configurations]: a few for the default run, the rest long."""
    kernel, result = "highway" if form == "linear" else form, {}
    kinds = [*configs.OPERANDS][form == "linear" :]  # whose first, ieee, PyTorch multiplies
    for generation, operands, amount in itertools.product(configs.GENERATIONS, kinds, ("many", "few")):
        for at, tile in enumerate(configs.tiles(kernel, generation, operands, amount)):
            quick = operands == "fp16" and amount == "many" and at == 0
            name = f"{form}-sm_{generation}-{operands}-{tile.bm}x{tile.bn}x{tile.bk}-{tile.warps}-{tile.stages}"
            result.setdefault(name, pytest.param(form, generation, operands, tile, id=name,
                                                 marks=() if quick else pytest.mark.long))
    return [*result.values()]


@pytest.mark.parametrize("form,generation,operands,tile", [row for form in SHAPES for row in grid_of(form)])
def test_every_configuration(monkeypatch, form, generation, operands, tile):
    on_ptx(monkeypatch, generation, tile)
    for case in SHAPES[form](tile):
        case.check(operands)


def exactly(name, *given):
    """The arguments of a step's kernel after it, and in float64 after the same in PyTorch."""
    exact = [each.double() if torch.is_tensor(each) and each.is_floating_point() else each for each in given]
    getattr(triton_on_ptx.lstm_pointwise, name)(*given)
    getattr(torch_lstm_pointwise, name)(*exact)
    return zip(given, exact)


@pytest.mark.parametrize("generation", configs.GENERATIONS)
@pytest.mark.parametrize("dtype,limit", [(torch.float16, 5e-4), (torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
def test_pointwise(monkeypatch, generation, dtype, limit):
    """Every argument against float64, with clips that fire, and NaN and infinity that they pass on and stop."""
    torch.manual_seed(0)
    on_ptx(monkeypatch, generation, registers=64)
    dim, projection, slots, rows = 700, 600, 5, 9
    meta = torch.tensor([[0, 3, -1, 8, 2], [1, 1, -1, 5, 7], [0, 1, 0, 0, 1]], dtype=torch.int32)
    after = torch.tensor([[0, 3, 1, 8, 2], [1, 1, 2, 5, 7], [0, 1, 0, 1, 0]], dtype=torch.int32)
    has_token, zh, r = meta[:2] >= 0, torch.randn(2, slots, 4 * dim), torch.randn(2, slots, projection)
    for each in (zh, r):
        each[0, 1, 5], each[1, 3, 550] = torch.nan, torch.inf
    *_, c, m, _ = exactly(
        "gates", zh, torch.randn(rows, 2, 4 * dim).to(dtype), torch.rand(rows, 2) if dtype == torch.float16 else None,
        torch.randn(2, 4 * dim), meta, torch.randn(2, dim), torch.randn(2, slots, dim),
        torch.zeros(2, slots, dim, dtype=dtype), 1.5)
    assert_close(*c, 1e-6)
    assert_close(*(each[has_token] for each in m), limit)
    assert (c[1].abs() == 1.5).any() and (c[1].abs() < 1.5).any()
    *_, h, operand, out, _ = exactly(
        "hidden", r, meta, after, torch.randn(2, projection), torch.zeros(2, slots, projection),
        torch.zeros(2, slots, projection, dtype=dtype), torch.zeros(slots, 2, projection), 1.25)
    assert h[1].isnan().any() and (h[1].abs() == 1.25).any()
    for found, value in (h, operand, (each.transpose(0, 1) for each in out)):
        assert_close(found[has_token], value[has_token], 1e-7 if found.dtype == torch.float32 else 5e-3)
