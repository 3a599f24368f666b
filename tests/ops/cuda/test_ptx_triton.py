"""The Triton kernels, run from the PTX of sm_80 and sm_90 that Triton compiles them to, against float64.

tests/ops has the shapes of the char encoder's ops; here are NaN, batch mates, edits, gradients and every configuration.
Then the two small kernels of an LSTM step, value by value; test_cuda_lstm_paths runs the LSTM on them.
"""

import dataclasses
import itertools

import pytest
import torch

from elmo_fast.ops.torch import char_cnn as torch_char_cnn
from elmo_fast.ops.torch import lstm_pointwise as torch_lstm_pointwise
from elmo_fast.testing import relative_error
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support import cuda_ops, triton_on_ptx
from tests.support.cuda_ops import PRECISIONS
from tests.support.engines import ON_TRITON, REFERENCE, Engine
from tests.support.models import options
from tests.support.op_cases import char_cnn_case, highway_case, linear_case
from tests.support.triton_on_ptx import assert_close, check_case, configs, on_ptx, run


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    on_ptx(monkeypatch, 80)
    with cuda_ops.registered_on_cpu():
        yield


TOKENS = "a", "naïve", "<S>", "of", "other", *("x" * n for n in (9, 11, 15, 16, 40))
every_precision = pytest.mark.parametrize("operands", PRECISIONS)


def ids_of(characters=18, tokens=TOKENS):
    return torch.from_numpy(to_model_ids(encode_tokens(tokens, characters))).long()


def conv(ids=None, filters=((1, 4), (3, 5)), activation="relu", **how):
    of = options(char_cnn={"embedding": {"dim": 16}, "filters": filters, "activation": activation})
    return char_cnn_case(of, ids_of() if ids is None else ids, **how)


@every_precision
@pytest.mark.parametrize("case, row", [(conv(), ord("f")), (highway_case(), 2)], ids=["char_cnn", "highway"])
def test_nan_and_infinity_go_where_the_reference_has_them(operands, case, row):
    first, second, *_, last = case.operands.values()
    first[row, 5], second[..., 1, 3], last[-1] = torch.nan, -torch.inf, torch.nan
    assert check_case(case, operands).isnan().any() and not run(case, operands).isnan().all()


@every_precision
def test_batch_mates_and_edits(operands):
    together = check_case(conv(), operands)
    assert torch.equal(torch.cat([run(conv(row[None]), operands) for row in ids_of()]), together)
    assert torch.equal(run(conv(ids_of().flip(0)), operands).flip(0), together)
    outside, inside = ids_of(), ids_of()
    outside[:3, 1], inside[:3, 1] = torch.tensor([-5, 262, 2**40]), torch.tensor([0, 261, 261])
    leaves = conv().leaves(wanted=[])
    one, other = (conv(ids).call(leaves, operands)[0] for ids in (outside, inside))
    assert torch.equal(one, other)
    leaves["w_0"].mul_(2)
    assert not torch.equal(conv(inside).call(leaves, operands)[0], other)


@pytest.mark.parametrize("operands, case, limit", [
    ("ieee", conv(filters=[[1, 3], [3, 4], [6, 5]]), 2e-5), ("ieee", highway_case(), 1e-5),
    ("bf16", highway_case(), 2e-2), ("tf32", linear_case(9, 33, 5), 2e-3)],
    ids=["in pieces", "highway ieee", "highway bf16", "linear tf32"])
def test_gradients_agree_with_the_reference(operands, case, limit, monkeypatch):
    monkeypatch.setattr(torch_char_cnn, "_WINDOWS_AT_ONCE", 60)
    found, exact = case.gradients(Engine(operands)), case.gradients(REFERENCE)
    assert found.keys() == exact.keys() and all(values.any() for values in exact.values())
    assert all(relative_error(found[name], exact[name]) < limit for name in case.operands)


def test_gradients_of_weights_in_bf16():
    case = conv(filters=[[1, 3], [3, 4], [6, 5]])
    case = dataclasses.replace(case, operands={name: each.bfloat16() for name, each in case.operands.items()})
    exact = case.gradients(REFERENCE)
    leaves = case.leaves() | {name: case.leaves(torch.bfloat16)[name] for name in ("char_embed", "w_1")}
    case.backward(case.call(leaves, "bf16"))
    for name, leaf in leaves.items():
        assert leaf.grad.dtype == leaf.dtype and relative_error(leaf.grad, exact[name]) < ON_TRITON["bf16"]


@pytest.mark.parametrize("operands", ["ieee", "bf16"])
def test_the_ops_are_registered_well(operands):
    embed, *filters = conv(filters=[[1, 3], [3, 4]]).leaves().values()
    (x, *weights), settings = highway_case(5, 7).leaves().values(), PRECISIONS[operands]
    for op, arguments in (("char_cnn", (ids_of()[:2], embed, filters[::2], filters[1::2], "relu", *settings, False)),
                          ("highway", (x, weights, None, *settings)),
                          ("linear", (x, weights[:2], None, 7, *settings))):
        torch.library.opcheck(getattr(torch.ops.elmo_fast, op).default, arguments)


# ---- every configuration that ships ------------------------------------------------------------


SHAPES = {"highway": lambda tile: [highway_case(3 * tile.bm - 5, 256)],
          "linear": lambda tile: [linear_case(tile.bm + 3, 208, tile.bn + 16),
                                  linear_case(tile.bm + 3, 256, 2 * tile.bn)],
          "char_cnn": lambda tile: [conv(ids_of(14, [f"{n:x}" * (n % 5) for n in range(tile.bm + 9)]),
                                         [[1, 16], [2, 32], [3, 64], [7, tile.bn + 16]])]}


def grid_of(form):
    """[(form, generation, operands, tile) of shipped configurations]: a few for the default run, the rest long."""
    kernel, result = "highway" if form == "linear" else form, {}
    kinds = [*PRECISIONS][form == "linear" :]  # whose first, ieee, PyTorch multiplies
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
        check_case(case, operands)


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
