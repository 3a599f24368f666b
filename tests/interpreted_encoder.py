"""The char encoder's ops on CPU tensors, by Triton's interpreter: `test_kernels.py` runs this in another process."""

import pytest
import torch
from tolerances import AGAINST_FLOAT64, GRADIENT_AGAINST_FLOAT64, relative_error

from elmo_fast.kernels import configs
from elmo_fast.ops import reference, torch_char_cnn
from elmo_fast.ops.cuda import encoder
from elmo_fast.text.characters import encode_tokens, to_model_ids

# name: precision and whether fp16 is known to fit; key of the limit
PRECISIONS = {"ieee": ("highest", False), "tf32": ("high", False), "fp16": ("medium", True), "bf16": ("medium", False)}
LIMITS = dict(zip(PRECISIONS, map(AGAINST_FLOAT64.get, ("highest", "high-tf32", "medium-fp16", "medium-bf16"))))
every_precision = pytest.mark.parametrize("name", PRECISIONS)
library = torch.library.Library("elmo_fast", "FRAGMENT")
for op, (implementation, *_) in encoder.OPS.items():
    library.impl(op, implementation, "CPU")


def words(characters=18, tokens=("a", "naïve", "<S>", "of", "other", *("x" * n for n in (9, 11, 15, 16, 40)))):
    return torch.from_numpy(to_model_ids(encode_tokens(tokens, characters))).long()


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).double()


def model(filters, dim=16):
    """char_embed, then weights and biases by turns, in float64."""
    return [draw(261, dim), *(part for width, n in filters for part in (draw(1, width, dim, n) / width, draw(n)))]


def layer(rows, size, outputs=None):
    """x, W_carry, b_carry, W_transform, b_transform; or, with `outputs`, x, W, b."""
    drawn = [draw(size, outputs or size, seed=k) / size**0.5 if k % 2 else draw(outputs or size) for k in (1, 2, 3, 4)]
    return [draw(rows, size), *drawn[: 2 if outputs else 4]]


def single(tensors):
    return [each.float() for each in tensors]


def char_cnn(tensors, ids, activation="relu", name=None):
    operands = ids, tensors[0], list(zip(tensors[1::2], tensors[2::2])), activation
    return encoder.char_cnn(*operands, *PRECISIONS[name]) if name else reference.char_cnn(*operands)


def check(name, tensors, ids, activation="relu"):
    expected, found = char_cnn(tensors, ids, activation), char_cnn(single(tensors), ids, activation, name)
    assert found.dtype == encoder.RESULTS[name] and found.shape == expected.shape
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isposinf(), expected.isposinf())
    finite = expected.isfinite()
    assert not len(ids) or relative_error(found[finite], expected[finite]) < LIMITS[name]
    return found


@every_precision
@pytest.mark.parametrize("dim, filters, ids", [
    (5, [[1, 3], [2, 6], [5, 7], [7, 33]], words()), (24, [[50, 3]], words(50)), (200, [[3, 4]], words(8)),
    (1, [[width, 1] for width in range(1, 10)], words(9)),
    *((16, [[1, 4], [3, 5]], ids) for ids in (
        words(5, [f"{n:x}" for n in range(configs.FEW + 1)]), words(9, [f"{n:x}" for n in range(33)]), words()[:0],
        torch.randint(0, 262, (9, 18), generator=torch.Generator().manual_seed(1)), torch.full((3, 18), 261),
        torch.tensor([[1, 261], [261, 1], [0, 261], [261, 0]]).repeat(1, 9), words().int(),
        words().t().contiguous().t(), torch.cat([words(), words()], dim=1)[:, :18])),
], ids=["odd", "width 50", "dim 200", "every width", "many", "sorted", "none", "any id", "padding", "both ends", "int32",
        "turned", "strided"])
def test_values_agree_with_float64(name, dim, filters, ids):
    for activation in ("relu", "tanh"):
        check(name, model(filters, dim), ids, activation)


@every_precision
def test_learned_padding_batch_mates_nan_and_edits(name):
    ids, tensors = words(), model([[1, 4], [4, 5]])
    tensors[0][260] = 9.0  # joins the maximum where a window of padding exists, and only there
    together = check(name, tensors, ids)
    assert torch.equal(torch.cat([check(name, tensors, row[None]) for row in ids[::3]]), together[::3])
    assert torch.equal(check(name, tensors, ids.flip(0)).flip(0), together)
    outside, clamped = ids.clone(), ids.clone()
    outside[:3, 1], clamped[:3, 1] = torch.tensor([-5, 262, 2**40]), torch.tensor([0, 261, 261])
    given = single(tensors)
    assert torch.equal(char_cnn(given, outside, name=name), char_cnn(given, clamped, name=name))
    given[1].mul_(2)
    assert not torch.equal(char_cnn(given, ids, name=name), together)
    tensors[0][ord("e"), 3], tensors[3][0, 0, 0, 4] = float("nan"), float("-inf")
    assert check(name, tensors, ids).isnan().any()


@every_precision
@pytest.mark.parametrize("rows, size", [(0, 33), (1, 16), (33, 37), (13 * 32 + 5, 40), (configs.FEW + 1, 48)])
def test_highway_and_product_agree_with_float64(name, rows, size):
    for compute, exact, tensors in ((encoder.highway, reference.highway, layer(rows, size)),
                                    (encoder.linear, lambda x, w, b: x @ w + b, layer(rows, size, outputs=19))):
        found = compute(*single(tensors), *PRECISIONS[name])
        turned = [each.t().contiguous().t() if each.dim() == 2 else each for each in single(tensors)]
        assert found.dtype == (encoder.RESULTS[name] if compute is encoder.highway else torch.float32)
        for each in (found, compute(*turned, *PRECISIONS[name])) if rows else ():
            assert each.isfinite().all() and relative_error(each, exact(*tensors)) < LIMITS[name]


def test_highway_at_the_extremes():
    x, w_c, b_c, w_t, b_t = single(layer(9, 33))
    assert torch.equal(encoder.highway(x, w_c * 0, b_c * 0 - 800, w_t, b_t, "highest"), x)
    x[2, 5], w_t[3, 4], b_c[6], x[7, 1] = float("nan"), float("inf"), float("nan"), float("-inf")
    expected, found = reference.highway(x, w_c, b_c, w_t, b_t), encoder.highway(x, w_c, b_c, w_t, b_t, "highest")
    assert torch.equal(found.isnan(), expected.isnan()) and not found.isnan().all()
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def same_gradients(ours, exact, tensors, limit=GRADIENT_AGAINST_FLOAT64):
    types = torch.float32, torch.float64
    found, expected = ([each.to(dtype).clone().requires_grad_() for each in tensors] for dtype in types)
    for compute, leaves in ((ours, found), (exact, expected)):
        out = compute(leaves)
        (out * torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    for one, other in zip(found, expected):
        assert other.grad.abs().sum() > 0 and relative_error(one.grad, other.grad) < limit


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("case", ["as it is", "ties", "in pieces"])
def test_gradients_of_char_cnn(activation, case, monkeypatch):
    tensors = model([[1, 3], [3, 4], [6, 5]])
    if activation == "tanh":  # its slope where it saturates, 1 - tanh(x)^2, is all rounding in fp32
        tensors[1::2] = [each / 8 for each in tensors[1::2]]
    if case == "ties":  # some filters see no difference between windows, or see only one value of a character
        tensors[0], tensors[1] = (tensors[0] > 0).double(), tensors[1].sign()
        tensors[3][..., :2], tensors[4][:2] = 0, 0.5
    elif case == "in pieces":
        monkeypatch.setattr(torch_char_cnn, "_WINDOWS_AT_ONCE", 60)
    same_gradients(lambda leaves: char_cnn(leaves, words(), activation, "ieee"),
                   lambda leaves: char_cnn(leaves, words(), activation), tensors)


def test_gradients_of_some_operands_in_16_bits():
    tensors = single(model([[1, 3], [3, 4]]))
    leaf = tensors[3].bfloat16().requires_grad_()
    char_cnn([tensors[0].bfloat16(), *tensors[1:3], leaf, tensors[4]], words(), "tanh", "bf16").float().sum().backward()
    exact = [tensors[0].bfloat16().double(), *map(torch.Tensor.double, tensors[1:3]),
             leaf.detach().double().requires_grad_(), tensors[4].double()]
    char_cnn(exact, words(), "tanh").sum().backward()
    assert leaf.grad.dtype == torch.bfloat16 and relative_error(leaf.grad, exact[3].grad) < LIMITS["bf16"]


@pytest.mark.parametrize("name, limit", [("ieee", 1e-5), ("tf32", 1e-5), ("bf16", 2e-2)])
def test_gradients_of_highway_and_product(name, limit):
    same_gradients(lambda leaves: encoder.highway(*leaves, *PRECISIONS[name]).float().sin(),
                   lambda leaves: reference.highway(*leaves).sin(), layer(9, 33), limit)
    same_gradients(lambda leaves: encoder.linear(*leaves, "high").sin(),
                   lambda leaves: (leaves[0] @ leaves[1] + leaves[2]).sin(), layer(9, 33, outputs=5), 1e-5)


@pytest.mark.parametrize("operands", ["ieee", "bf16"])
def test_the_ops_are_registered_well(operands):
    parts = single(model([[1, 3], [3, 4]])), single(layer(5, 7))
    (embed, *filters), row = ([each.requires_grad_() for each in part] for part in parts)
    for op, arguments in (("char_cnn", (words()[:2], embed, filters[::2], filters[1::2], "relu")), ("highway", row),
                          ("product", row[:3])):
        torch.library.opcheck(getattr(torch.ops.elmo_fast, op).default, (*arguments, operands))


def test_compile_sees_one_op():
    tensors, graphs = single(model([[1, 3], [3, 4]])), []
    compiled = torch.compile(lambda ids: char_cnn(tensors, ids, "relu", "ieee"), fullgraph=True,
                             backend=lambda graph, _: graphs.append(graph) or graph.forward)
    assert torch.equal(compiled(words()), char_cnn(tensors, words(), name="ieee"))
    assert [str(node.target) for node in graphs[0].graph.nodes].count("elmo_fast.char_cnn") == 1
