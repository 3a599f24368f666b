"""The char encoder's ops on CPU tensors, their kernels run as PTX: odd shapes, NaN, batch mates, edits, gradients."""

from dataclasses import dataclass

import pytest
import torch

from elmo_fast.ops import reference
from elmo_fast.ops.cuda import encoder
from elmo_fast.ops.torch import char_cnn as torch_char_cnn
from elmo_fast.testing import AGAINST_FLOAT64, GRADIENT_AGAINST_FLOAT64, relative_error
from elmo_fast.text.characters import encode_tokens, to_model_ids
from tests.support import cuda_ops
from tests.support.triton_on_ptx import encoder_on_ptx

# name: precision and whether fp16 is known to fit
PRECISIONS = {"ieee": ("highest", False), "tf32": ("high", False), "fp16": ("medium", True), "bf16": ("medium", False)}
LIMITS = dict(zip(PRECISIONS, map(AGAINST_FLOAT64.get, ("highest", "high-tf32", "medium-fp16", "medium-bf16"))))
EXACT = {"char_cnn": reference.char_cnn, "highway": reference.highway, "linear": lambda x, w, b: x @ w + b}


@pytest.fixture(autouse=True)
def on_ptx(monkeypatch):
    encoder_on_ptx(monkeypatch, 80)
    with cuda_ops.registered_on_cpu():
        yield


def words(characters=18, tokens=("a", "naïve", "<S>", "of", "other", *("x" * n for n in (9, 11, 15, 16, 40)))):
    return torch.from_numpy(to_model_ids(encode_tokens(tokens, characters))).long()


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).double()


@dataclass
class Case:
    """An op on `tensors`, float64: char_embed (for char_cnn) or x, then weights and biases by turns."""

    op: str
    tensors: list[torch.Tensor]
    ids: torch.Tensor | None = None
    activation: str = "relu"

    def run(self, name=None, tensors=None):
        """The op in the precision of that name, in fp32 tensors, or exactly."""
        given = tensors or [each.float() if name else each for each in self.tensors]
        if self.op == "char_cnn":
            given = self.ids, given[0], list(zip(given[1::2], given[2::2])), self.activation
        return getattr(cuda_ops, self.op)(*given, *PRECISIONS[name]) if name else EXACT[self.op](*given)

    def check(self, name):
        found, expected = self.run(name), self.run()
        assert found.dtype == (torch.float32 if self.op == "linear" else encoder.RESULTS[name])
        assert found.shape == expected.shape and torch.equal(found.isnan(), expected.isnan())
        finite = expected.isfinite()
        assert torch.equal(found.isfinite(), finite)
        assert not found.numel() or relative_error(found[finite], expected[finite]) < LIMITS[name]
        return found


def conv(ids=None, filters=((1, 4), (3, 5)), dim=16, activation="relu"):
    drawn = (part for width, n in filters for part in (draw(1, width, dim, n) / width, draw(n)))
    return Case("char_cnn", [draw(261, dim), *drawn], words() if ids is None else ids, activation)


def layer(op, rows, size, outputs=None):
    drawn = [draw(size, outputs or size, seed=k) / size**0.5 if k % 2 else draw(outputs or size) for k in (1, 2, 3, 4)]
    return Case(op, [draw(rows, size), *drawn[: 4 if op == "highway" else 2]])


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
    given = [each.float() for each in case.tensors]
    runs = [Case("char_cnn", [], ids).run(name, given) for ids in (outside, inside)]
    assert torch.equal(*runs)
    given[1].mul_(2)
    assert not torch.equal(Case("char_cnn", [], inside).run(name, given), runs[1])


def gradients(case, name, kinds):
    leaves = [each.to(kind).clone().requires_grad_() for each, kind in zip(case.tensors, kinds)]
    out = case.run(name, leaves).float() if name else case.run(None, leaves)
    out = out.sin() if case.op != "char_cnn" else out
    (out * torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [each.grad for each in leaves]


@pytest.mark.parametrize("how", ["as it is", "ties", "in pieces", "tanh", "bf16", "highway ieee", "highway bf16",
                                 "linear tf32"])
def test_gradients_agree_with_the_reference(how, monkeypatch):
    case, kinds = conv(None, [[1, 3], [3, 4], [6, 5]]), [torch.float32] * 7
    name, limit = "ieee", GRADIENT_AGAINST_FLOAT64
    if how in ("tanh", "bf16"):  # its slope where it saturates, 1 - tanh(x)^2, is all rounding in fp32
        case.activation, case.tensors[1::2] = "tanh", [each / 8 for each in case.tensors[1::2]]
    if how == "ties":  # some filters see no difference between windows, or see only one value of a character
        case.tensors[0], case.tensors[1] = (case.tensors[0] > 0).double(), case.tensors[1].sign()
        case.tensors[3][..., :2], case.tensors[4][:2] = 0, 0.5
    elif how == "in pieces":
        monkeypatch.setattr(torch_char_cnn, "_WINDOWS_AT_ONCE", 60)
    elif how == "bf16":
        kinds[0] = kinds[3] = torch.bfloat16
        case.tensors, name, limit = [each.bfloat16().double() for each in case.tensors], "bf16", LIMITS["bf16"]
    elif " " in how and how[0] in "hl":
        op, name = how.split()
        case, limit = layer(op, 9, 33, None if op == "highway" else 5), {"ieee": 1e-5, "tf32": 2e-3, "bf16": 2e-2}[name]
    for ours, exact, kind in zip(gradients(case, name, kinds), gradients(case, None, [torch.float64] * 7), kinds):
        assert ours.dtype == kind and exact.abs().sum() > 0 and relative_error(ours, exact) < limit


@pytest.mark.parametrize("operands", ["ieee", "bf16"])
def test_the_ops_are_registered_well(operands):
    parts = conv(None, [[1, 3], [3, 4]]).tensors, layer("highway", 5, 7).tensors
    (embed, *filters), row = ([each.float().requires_grad_() for each in part] for part in parts)
    settings = PRECISIONS[operands]
    for op, arguments in (("char_cnn", (words()[:2], embed, filters[::2], filters[1::2], "relu", *settings, False)),
                          ("highway", (row[0], row[1:], None, *settings)),
                          ("linear", (row[0], row[1:3], None, 7, *settings))):
        torch.library.opcheck(getattr(torch.ops.elmo_fast, op).default, arguments)


def test_compile_sees_one_op():
    case, graphs = conv(), []
    given = [each.float() for each in case.tensors]
    compiled = torch.compile(lambda: case.run("ieee", given), fullgraph=True,
                             backend=lambda graph, _: graphs.append(graph) or graph.forward)
    assert torch.equal(compiled(), case.run("ieee", given))
    assert [str(node.target) for node in graphs[0].graph.nodes].count("elmo_fast.char_cnn") == 1
