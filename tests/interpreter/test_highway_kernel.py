import pytest
import torch
from tolerances import AGAINST_FLOAT64, relative_error

from elmo_fast.kernels import configs
from elmo_fast.ops import native_cuda, reference

# name: precision, whether fp16 is known to fit, key of the limit
PRECISIONS = {"ieee": ("highest", False, "highest"), "tf32": ("high", False, "high-tf32"),
              "fp16": ("medium", True, "medium-fp16"), "bf16": ("medium", False, "medium-bf16")}


def operands(rows, size, outputs=None, dtype=torch.float64):
    """x, W_carry, b_carry, W_transform, b_transform; or, with `outputs`, x, W, b."""
    generator = torch.Generator().manual_seed(rows + size)
    outputs, count = outputs or size, 1 if outputs else 2

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).float().to(dtype)

    pairs = [(draw(size, outputs) / size**0.5, draw(outputs)) for _ in range(count)]
    return [draw(rows, size), *(part for pair in pairs for part in pair)]


SIZES = [(1, 1), (1, 16), (33, 37), (70, 64), (5, 130), (configs.FEW + 1, 48)]


@pytest.mark.parametrize("rows, size", SIZES)
@pytest.mark.parametrize("name", PRECISIONS)
def test_highway_agrees_with_float64(name, rows, size):
    expected = reference.highway(*operands(rows, size))
    found = native_cuda.highway(*operands(rows, size, dtype=torch.float32), *PRECISIONS[name][:2])
    assert found.dtype == native_cuda.RESULTS[name] and found.isfinite().all()
    assert relative_error(found, expected) < AGAINST_FLOAT64[PRECISIONS[name][2]]


@pytest.mark.parametrize("rows, size", SIZES)
@pytest.mark.parametrize("name", PRECISIONS)
def test_product_agrees_with_float64(name, rows, size):
    x, w, b = operands(rows, size, outputs=19)
    found = native_cuda.linear(x.float(), w.float(), b.float(), *PRECISIONS[name][:2])
    assert found.dtype == torch.float32
    assert relative_error(found, x @ w + b) < AGAINST_FLOAT64[PRECISIONS[name][2]]


def test_more_rows_than_run_together():
    """Seven groups of row tiles, the last one short."""
    rows = 13 * 32 + 5
    expected = reference.highway(*operands(rows, 40))
    found = native_cuda.highway(*operands(rows, 40, dtype=torch.float32), "highest")
    assert relative_error(found, expected) < AGAINST_FLOAT64["highest"]


@pytest.mark.parametrize("name", PRECISIONS)
def test_layout_and_type_of_the_operands_do_not_matter(name):
    x, *weights = operands(9, 33, dtype=torch.float32)
    expected = native_cuda.highway(x, *weights, *PRECISIONS[name][:2])
    turned = [each.t().contiguous().t() for each in (x, weights[0], weights[2])]
    found = native_cuda.highway(turned[0], turned[1], weights[1], turned[2], weights[3], *PRECISIONS[name][:2])
    assert torch.equal(found, expected)
    wide = torch.cat([x, x], dim=1)[:, :33]
    assert torch.equal(native_cuda.highway(wide, *weights, *PRECISIONS[name][:2]), expected)


def test_no_rows():
    x, *weights = operands(0, 33, dtype=torch.float32)
    assert native_cuda.highway(x, *weights, "highest").shape == (0, 33)
    assert native_cuda.linear(x, *weights[:2], "high").shape == (0, 33)


def test_extremes():
    x, w_c, b_c, w_t, b_t = operands(9, 33, dtype=torch.float32)
    assert torch.equal(native_cuda.highway(x, w_c * 0, b_c * 0 - 800, w_t, b_t, "highest"), x)
    x[2, 5], w_t[3, 4], b_c[6], x[7, 1] = float("nan"), float("inf"), float("nan"), float("-inf")
    expected = reference.highway(*(each.double() for each in (x, w_c, b_c, w_t, b_t)))
    found = native_cuda.highway(x, w_c, b_c, w_t, b_t, "highest").double()
    assert torch.equal(found.isnan(), expected.isnan()) and not found.isnan().all()
    finite = expected.isfinite()
    assert torch.equal(found.isinf(), expected.isinf())
    assert relative_error(found[finite], expected[finite]) < AGAINST_FLOAT64["highest"]


@pytest.mark.parametrize("name", ["ieee", "tf32", "bf16"])
def test_gradients_agree_with_the_reference(name):
    grads = []
    for dtype in (torch.float64, torch.float32):
        leaves = [each.requires_grad_() for each in operands(9, 33, dtype=dtype)]
        leaves[2].requires_grad_(False)  # the carry bias stays as it is
        run = reference.highway if dtype == torch.float64 else lambda *each: native_cuda.highway(*each, PRECISIONS[name][0])
        wanted = [each for each in leaves if each.requires_grad]
        grads.append(torch.autograd.grad(run(*leaves).float().sin().sum(), wanted))
    for expected, found in zip(*grads):
        assert expected.abs().sum() > 0
        assert relative_error(found, expected) < (2e-2 if name == "bf16" else 1e-5)


def test_gradients_of_a_product():
    leaves = [each.requires_grad_() for each in operands(9, 33, outputs=5, dtype=torch.float32)]
    found = torch.autograd.grad(native_cuda.linear(*leaves, "high").sin().sum(), leaves)
    expected = torch.autograd.grad((leaves[0] @ leaves[1] + leaves[2]).sin().sum(), leaves)
    assert all(relative_error(*pair) < 1e-5 for pair in zip(found, expected))


@pytest.mark.parametrize("kind", ["ieee", "bf16"])
def test_the_ops_are_registered_well(kind):
    x, *weights = operands(5, 7, dtype=torch.float32)
    torch.library.opcheck(torch.ops.elmo_fast.highway.default, (x, *(each.requires_grad_() for each in weights), kind))
    torch.library.opcheck(torch.ops.elmo_fast.product.default, (x.requires_grad_(), *weights[:2], kind))
