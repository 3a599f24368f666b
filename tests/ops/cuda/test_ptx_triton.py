"""The Triton kernels, compiled to PTX for sm_80 and sm_90 and interpreted, against float64.

Here: NaN, batch mates, edits, gradients and every configuration. tests/ops has the shapes of the char encoder's ops,
test_cuda_lstm_paths the two small kernels of an LSTM step.
"""

import dataclasses
import itertools
import re

import pytest
import torch

from elmo_fast.ops.backend import triton_version
from elmo_fast.ops.char_cnn import pytorch as torch_char_cnn
from elmo_fast.testing import AGAINST_FLOAT64, GRADIENT_AGAINST_FLOAT64, relative_error
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support.cuda_ops import PRECISIONS
from tests.support.engines import ON_TRITON, REFERENCE, Engine
from tests.support.models import options
from tests.support.op_cases import char_cnn_case, highway_case, linear_case
from tests.support.triton_on_ptx import COMPILED, check_case, configs, on_ptx, run

pytestmark = pytest.mark.long  # building the PTX interpreter takes minutes


@pytest.fixture(autouse=True)
def patch():
    with Engine("ieee").active() as patch:
        yield patch


TOKENS = "a", "naïve", "<S>", "of", "other", *("x" * n for n in (9, 11, 15, 16, 40))
every_precision = pytest.mark.parametrize("operands", PRECISIONS)


def ids_of(characters=18, tokens=TOKENS):
    return torch.from_numpy(to_model_ids(encode_tokens(tokens, characters))).long()


def conv(ids=None, filters=((1, 4), (3, 5))):
    sizes = options(char_cnn={"embedding": {"dim": 16}, "filters": filters})
    return char_cnn_case(sizes, ids_of() if ids is None else ids)


@every_precision
@pytest.mark.parametrize("case, row", [(conv(), ord("f")), (highway_case(), 2)], ids=["char_cnn", "highway"])
def test_nan_and_infinity_match_the_reference(operands, case, row):
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
    outside_vectors, inside_vectors = (conv(ids).call(leaves, operands)[0] for ids in (outside, inside))
    assert torch.equal(outside_vectors, inside_vectors)
    leaves["w_0"].mul_(2)
    assert not torch.equal(conv(inside).call(leaves, operands)[0], inside_vectors)


@pytest.mark.parametrize("operands, case", [
    ("ieee", conv(filters=[[1, 3], [3, 4], [6, 5]])), ("ieee", highway_case()), ("bf16", highway_case()),
    ("tf32", linear_case(9, 33, 5))], ids=["in pieces", "highway ieee", "highway bf16", "linear tf32"])
def test_gradients_agree_with_the_reference(operands, case, monkeypatch):
    limit = max(GRADIENT_AGAINST_FLOAT64, AGAINST_FLOAT64[operands])
    monkeypatch.setattr(torch_char_cnn, "_WINDOWS_AT_ONCE", 60)
    actual, exact = case.gradients(Engine(operands)), case.gradients(REFERENCE)
    assert actual.keys() == exact.keys() and all(values.any() for values in exact.values())
    assert all(relative_error(actual[name], exact[name]) < limit for name in case.operands)


def test_gradients_of_weights_in_bf16():
    case = conv(filters=[[1, 3], [3, 4], [6, 5]])
    case = dataclasses.replace(case, operands={name: values.bfloat16() for name, values in case.operands.items()})
    exact = case.gradients(REFERENCE)
    leaves = case.leaves() | {name: case.leaves(torch.bfloat16)[name] for name in ("char_embed", "w_1")}
    case.backward(case.call(leaves, "bf16"))
    for name, leaf in leaves.items():
        assert leaf.grad.dtype == leaf.dtype and relative_error(leaf.grad, exact[name]) < ON_TRITON["bf16"]


SHAPES = {"highway": lambda tile: [highway_case(3 * tile.bm - 5, 256)],
          "char_cnn": lambda tile: [conv(ids_of(14, [f"{n:x}" * (n % 5) for n in range(tile.bm + 9)]),
                                         [[1, 16], [2, 32], [3, 64], [7, tile.bn + 16]])]}


def shipped():
    """Parameters of the tests below, without ieee products of highway layers, which cuBLAS computes."""
    combinations = itertools.product(SHAPES, configs.GENERATIONS, PRECISIONS, ("many", "few"))
    for form, generation, operands, amount in combinations:
        if form != "char_cnn" and operands == "ieee":
            continue
        yield form, generation, operands, configs.tile_of(form, generation, operands, amount)


@pytest.mark.parametrize("form,generation,operands,tile", [*shipped()], ids=str)
def test_every_configuration(patch, form, generation, operands, tile):
    driver = on_ptx(patch, generation, tile)
    for case in SHAPES[form](tile):
        check_case(case, operands)
    assert driver.ran


@pytest.mark.parametrize("form,generation,operands,tile", [row for row in shipped() if row[1] == 90], ids=str)
def test_single_stages_for_older_tritons(patch, form, generation, operands, tile):
    """The tiles as an older Triton has them: copies come through registers, so that the fence is there."""
    patch.setattr(configs, "VERSION", (3, 6, 0))
    driver = on_ptx(patch, generation, tile)
    for case in SHAPES[form](tile):
        check_case(case, operands)
    assert not re.search(r"cp\.async", driver.ran)


@pytest.mark.long
@pytest.mark.parametrize("form, operands", [("char_cnn", precision) for precision in PRECISIONS] + [
    ("highway", precision) for precision in PRECISIONS if precision != "ieee"], ids=str)
@pytest.mark.parametrize("chip", COMPILED)
def test_newer_chips_compile(patch, chip, form, operands):
    """The tile for many tokens. Before Triton 3.6 `why_no_triton` refuses compute capability 10."""
    generation, _ = COMPILED[chip]
    if chip == 100 and triton_version() < (3, 6):
        pytest.skip("not taken there with this Triton")
    tile = configs.tile_of(form, generation, operands, "many")
    driver = on_ptx(patch, chip, tile)
    for case in SHAPES[form](tile):
        run(case, operands)
    assert driver.ran


@pytest.mark.parametrize("operands", PRECISIONS)
def test_which_highway_layers_are_fused(patch, operands):
    """Layers in fp32 are not fused."""
    for generation in configs.GENERATIONS:
        driver = on_ptx(patch, generation)
        check_case(highway_case(5, 48), operands)
        assert (driver.ran is None) == (operands == "ieee")


@every_precision
@pytest.mark.parametrize("generation", configs.GENERATIONS)
def test_cublas_multiplies_without_a_highway(patch, operands, generation):
    driver = on_ptx(patch, generation)
    check_case(linear_case(5, 33, 7), operands)
    assert driver.ran is None


@pytest.mark.parametrize("operands", ["tf32", "fp16", "bf16"])
def test_the_fence_before_products_on_sm_90(patch, operands):
    """A fence that is taken out is missed."""
    driver, case = on_ptx(patch, 90), highway_case(5, 48)
    check_case(case, operands)
    driver.text = re.sub(r"fence\.proxy\.async[^;]*;", "", driver.compiled)
    with pytest.raises(RuntimeError, match="what was written with no fence.proxy.async"):
        run(case, operands)
    assert "wgmma.mma_async" in driver.ran
