"""Gradients of the C++ char encoder against the reference's autograd in float64, and of a whole model."""

import json

import pytest
import torch

from elmo_fast import Elmo, batch_to_ids, write_weights
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.char_cnn import char_cnn
from elmo_fast.ops.linear import highway, linear
from elmo_fast.testing import GRADIENT_AGAINST_FLOAT64, relative_error
from tests.support.grid import grid
from tests.support.models import SENTENCES, SHAPES, bilm, options, weights
from tests.support.native_lstm import ISAS, isa
from tests.support.op_cases import RecordedOps, highway_arguments, on_threads
from tests.support.op_cases import char_cnn_arguments as arguments

pytestmark = pytest.mark.skipif(native_module()[0] is None, reason=f"no native module: {native_module()[1]}")


def gradients(op, operands, backend: str, dtype=torch.float32) -> list[torch.Tensor]:
    """Result, then gradients of all operands."""
    leaves = [each.detach().to(dtype, copy=True).requires_grad_() for each in operands]
    out = op(*leaves, backend=backend)
    generator = torch.Generator().manual_seed(9)
    out.backward(torch.randn(out.shape, generator=generator, dtype=torch.float64).to(dtype))
    return [out.detach(), *(each.grad for each in leaves)]


def check(op, *operands, reference="reference") -> None:
    """On every instruction set of this machine."""
    expected = gradients(op, operands, reference, torch.float64)
    for name in ISAS:
        with isa(name):
            for found, truth in zip(gradients(op, operands, "native"), expected):
                assert found.shape == truth.shape
                if truth.norm() == 0:
                    assert not found.any(), name
                else:
                    assert relative_error(found, truth) < GRADIENT_AGAINST_FLOAT64, name


def convolution(of, ids=None, change=lambda weight: weight):
    """`char_cnn` as a function of its float operands alone, and those."""
    own, char_embed, filters, activation = arguments(of)
    ids = own if ids is None else ids

    def op(table, *parts, backend):
        return char_cnn(ids, table, list(zip(parts[::2], parts[1::2])), activation, backend=backend)

    return op, change(char_embed), *(part for weight, bias in filters for part in (change(weight), bias))


WIDE = options(char_cnn={"filters": [[1, 33], [2, 4], [6, 47], [7, 3]]})
LONG = options(char_cnn={"embedding": {"dim": 48}, "filters": [[1, 3], [3, 20], [6, 5]]})  # sums of over 256 products
SIXTEEN = options(char_cnn={"embedding": {"dim": 16}, "filters": [[1, 32], [2, 32], [4, 40], [9, 17]]})


@pytest.mark.parametrize("of", [*SHAPES.values(), WIDE, LONG, SIXTEEN], ids=[*SHAPES, "wide", "long", "sixteen"])
def test_char_cnn_agrees_with_float64(of):
    check(*convolution(of))


@pytest.mark.parametrize("ids", [
    torch.randint(0, 262, (40, 50), generator=torch.Generator().manual_seed(1)),
    torch.randint(0, 3, (40, 50), generator=torch.Generator().manual_seed(2)),
    torch.full((3, 50), 261),
    torch.zeros(2, 50, dtype=torch.int64),
    torch.randint(0, 262, (3, 7), dtype=torch.int32, generator=torch.Generator().manual_seed(3)),
], ids=["any id anywhere", "few ids", "padding alone", "no token", "as long as the widest filter"])
@pytest.mark.parametrize("of", [WIDE, SIXTEEN], ids=["wide", "sixteen"])
def test_rows_that_no_token_gives(of, ids):
    if ids.shape[1] < 9 and of is SIXTEEN:
        ids = ids.repeat(1, 2)
    check(*convolution(of, ids))


@pytest.mark.parametrize("change", [lambda weight: weight * 0, lambda weight: (weight * 8).round() / 8],
                         ids=["every window ties", "some windows tie"])
@pytest.mark.parametrize("of", [WIDE, LONG, SIXTEEN], ids=["wide", "long", "sixteen"])
def test_ties_share_a_gradient_as_in_the_reference(of, change):
    operands = convolution(of, change=change)
    check(*operands)
    few = torch.randint(0, 262, (30, 12), generator=torch.Generator().manual_seed(1)) // 60 * 60
    check(*convolution(of, few, change))


def test_repeated_characters_tie():
    ids = torch.tensor([[5, 7, 5, 7, 5, 7, 7, 5] + [261] * 4, [9] * 12, [9] * 6 + [261] * 6])
    check(*convolution(WIDE, ids))


def test_no_tokens():
    op, *operands = convolution(WIDE, torch.zeros(0, 50, dtype=torch.int64))
    found = gradients(op, operands, "native")
    assert found[0].shape == (0, 87) and not any(each.any() for each in found[1:])


def test_the_forward_of_char_cnn_has_the_bits_of_inference():
    for of in (WIDE, LONG, SIXTEEN):
        op, *operands = convolution(of)
        single = [each.float() for each in operands]
        with torch.no_grad():
            expected = op(*single, backend="native")
        assert torch.equal(op(*[each.requires_grad_() for each in single], backend="native"), expected)


@pytest.mark.parametrize("wanted", range(5))
def test_one_operand_of_char_cnn_alone(wanted):
    op, *operands = convolution(WIDE)
    everything = gradients(op, operands, "native")
    single = [each.detach().float().requires_grad_(k == wanted) for k, each in enumerate(operands)]
    out = op(*single, backend="native")
    generator = torch.Generator().manual_seed(9)
    out.backward(torch.randn(out.shape, generator=generator, dtype=torch.float64).float())
    assert torch.equal(single[wanted].grad, everything[1 + wanted])
    assert all(each.grad is None for k, each in enumerate(single) if k != wanted)


@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 33, 17), (70, 300, 37), (300, 16, 64)], ids=str)
def test_linear_agrees_with_float64(shape):
    rows, inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator, dtype=torch.float64) + 0.5
                       for size in ((rows, inputs), (inputs, outputs), (outputs,)))

    check(linear, x, weight, bias, reference="torch")
    found = gradients(linear, (x[:0], weight, bias), "native")
    assert found[0].shape == (0, outputs) and not found[2].any()


def test_highway_agrees_with_float64():
    check(highway, *highway_arguments(torch.float64))


def test_any_number_of_threads_gives_the_same_bits():
    op, *operands = convolution(SIXTEEN)
    expected, *others = (on_threads(threads, gradients, op, operands, "native") for threads in (1, 2, 3, 7))
    assert all(torch.equal(one, two) for other in others for one, two in zip(expected, other))


def test_no_second_derivatives():
    op, *operands = convolution(SIXTEEN)
    leaves = [each.float().requires_grad_() for each in operands]
    grad, = torch.autograd.grad(op(*leaves, backend="native").square().sum(), leaves[1], create_graph=True)
    with pytest.raises(RuntimeError, match="the native backend has no second derivatives"):
        grad.sum().backward()


def test_an_edit_between_forward_and_backward_is_refused():
    op, *operands = convolution(SIXTEEN)
    leaves = [each.float().requires_grad_() for each in operands]
    out = op(*leaves, backend="native")
    with torch.no_grad():
        leaves[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("of, name", grid([*SHAPES.values(), WIDE, LONG, SIXTEEN], ISAS, together=1))
def test_the_forward_without_gradients_has_the_same_bits(of, name):
    ids, char_embed, filters, activation = arguments(of, torch.float32)
    for broken in (None, float("nan"), float("inf")):
        table, kernels = char_embed.clone(), [weight.clone() for weight, _ in filters]
        if broken is not None:
            table[ids[0, 1] - 1, 0], kernels[0][..., -1] = broken, -1.0
        pairs = list(zip(kernels, (bias for _, bias in filters)))
        with isa(name):
            alone = char_cnn(ids, table, pairs, activation, backend="native")
            recorded = char_cnn(ids, table.requires_grad_(), pairs, activation, backend="native")
        assert recorded.requires_grad and not alone.requires_grad
        assert torch.equal(alone.nan_to_num(7e9), recorded.detach().nan_to_num(7e9))
        assert bool(alone.isnan().any()) == (broken is not None and broken != broken)


def test_registered_ops():
    ids, table, filters, activation = arguments(SIXTEEN, torch.float32)
    weights, biases, ops = *map(list, zip(*filters)), torch.ops.elmo_fast
    settings = activation, "highest", False
    for save in (False, True):
        torch.library.opcheck(ops.char_cnn.default, (ids.int(), table, weights, biases, *settings, save))
    leaves = [[each.clone().requires_grad_() for each in part] for part in ([table], weights, biases)]
    torch.library.opcheck(ops.char_cnn.default, (ids.int(), *leaves[0], *leaves[1:], *settings, True))
    values, picks = ops.char_cnn(ids.int(), table, weights, biases, *settings, True)
    needed = [number % 3 != 1 for number in range(1 + 2 * len(weights))]
    torch.library.opcheck(ops.char_cnn_backward.default, (torch.randn_like(values), values, picks, ids.int(), table,
                                                          weights, biases, *settings, needed))


@pytest.mark.parametrize("shape, state", grid(["two layers", "no projection", "clips that fire"],
                                              ["carry", "zero", "warm"], together=1))
def test_fine_tuning_has_the_gradients_of_torch(tmp_path, shape, state):
    of = SHAPES[shape]
    (tmp_path / "options.json").write_text(json.dumps(of.to_dict()), encoding="utf-8")
    write_weights(tmp_path / "weights.hdf5", weights(of))
    found = {}
    for backend in ("torch", "native", "auto"):
        elmo = Elmo(str(tmp_path / "options.json"), str(tmp_path / "weights.hdf5"), 1, requires_grad=True, dropout=0,
                    state=state, backend=backend)
        for sentences in (SENTENCES, SENTENCES[:3]):
            elmo(batch_to_ids(sentences))["elmo_representations"][0].sin().sum().backward()
        found[backend] = {name: each.grad for name, each in elmo.named_parameters() if each.grad is not None}
    assert found["torch"].keys() == found["native"].keys() and len(found["native"]) > 10
    for name, expected in found["torch"].items():
        assert relative_error(found["native"][name], expected) < GRADIENT_AGAINST_FLOAT64, name
        assert torch.equal(found["auto"][name], found["native"][name])


def test_inference_asks_for_nothing_more():
    """Without gradients the ops of inference run, and nothing is kept."""
    model = bilm(backend="native", requires_grad=True)
    with torch.no_grad(), RecordedOps() as ran:
        model(batch_to_ids(SENTENCES))
    saving = {func.name(): args[-1] for func, args in ran.calls
              if func.name() in ("elmo_fast::projected_lstm", "elmo_fast::char_cnn")}
    assert saving == {"elmo_fast::projected_lstm": False, "elmo_fast::char_cnn": False}
