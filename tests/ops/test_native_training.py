"""Gradients of the C++ LSTM against the reference's autograd in float64, and what training asks of them."""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_map_only

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.projected_lstm import projected_lstm
from elmo_fast.ops.schedule import Schedule, make_schedule
from elmo_fast.testing import GRADIENT_AGAINST_FLOAT64, relative_error
from tests.support.grid import grid
from tests.support.native_lstm import ISAS, isa
from tests.support.op_cases import RecordedOps, on_threads

pytestmark = pytest.mark.skipif(native_module()[0] is None, reason=f"no native module: {native_module()[1]}")

RAGGED = [3, 1, 0, 7, 4, 1, 5]
SIZES = [(11, 37, 11), (16, 24, 24), (5, 40, 33), (64, 128, 64), (1, 1, 1), (7, 5, 2), (33, 70, 45)]  # I, D, P
TIGHT = {"cell_clip": 0.3, "proj_clip": 0.08}
WAYS = [(RAGGED, None), ([3, 1, 2, 7, 4, 1, 5], np.array([0, 1, 1, 0, 2, 1, 0])), ([1], None), ([4] * 9, None),
        ([2] * 61, None)]  # lengths, slots


@dataclasses.dataclass(frozen=True)
class Case:
    """Float64 operands of one call by name, and how it goes."""

    tensors: dict
    rows: torch.Tensor | None
    schedule: Schedule
    clips: dict
    grads: list  # of outputs, final h and final c

    def leaves(self, dtype=torch.float32) -> dict:
        return {name: each.to(dtype, copy=True).requires_grad_() for name, each in self.tensors.items()}

    def forward(self, leaves: dict, backend: str) -> list[torch.Tensor]:
        weights = tuple(tuple(leaves.get(f"{name}_{d}") for name in ("w", "b", "p")) for d in (0, 1))
        initial_state = (leaves["initial_h"], leaves["initial_c"]) if "initial_h" in leaves else None
        out, final = projected_lstm(leaves["inputs"], self.rows, self.schedule, (leaves["h"], leaves["c"]), weights,
                                    **self.clips, initial_state=initial_state, backend=backend)
        return [out, *final]

    def gradients(self, backend: str, dtype=torch.float32) -> dict:
        leaves = self.leaves(dtype)
        found = self.forward(leaves, backend)
        torch.autograd.backward(found, [each.to(dtype) for each in self.grads])
        return {name: each.grad for name, each in leaves.items()}


def draw(sizes=SIZES[0], lengths=RAGGED, slots=None, gathered=True, starts=False, clips=None, seed=0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=0.3):
        return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

    width, dim, projection = sizes
    schedule = make_schedule(np.asarray(lengths), slots)
    steps, count = int(schedule.batch_sizes.sum()), schedule.slots.size
    unique = max(1, steps // 3)
    tensors = {"inputs": random(unique, width, scale=1) if gathered else random(steps, 2 * width, scale=1),
               "h": random(count, 2 * projection), "c": random(count, 2 * dim)}
    for d in (0, 1):
        tensors |= {f"w_{d}": random(width + projection, 4 * dim, scale=(width + projection) ** -0.5),
                    f"b_{d}": random(4 * dim)}
        if dim != projection:
            tensors[f"p_{d}"] = random(dim, projection, scale=dim ** -0.5)
    if starts:
        tensors |= {"initial_h": random(2 * projection), "initial_c": random(2 * dim)}
    rows = torch.randint(0, unique, (2, steps), generator=generator) if gathered else None
    grads = [random(steps, 2 * projection, scale=1), random(count, 2 * projection), random(count, 2 * dim)]
    return Case(tensors, rows, schedule, clips or {}, grads)


def check(case: Case, isas=(None,)) -> None:
    expected = case.gradients("reference", torch.float64)
    for name in isas:
        with isa(name) if name else contextlib.nullcontext():
            found = case.gradients("native")
        for operand, truth in expected.items():
            assert found[operand].shape == truth.shape
            if truth.norm() == 0:
                assert not found[operand].any(), (name, operand)
            else:
                assert relative_error(found[operand], truth) < GRADIENT_AGAINST_FLOAT64, (name, operand)


@pytest.mark.parametrize("sizes, way, gathered, starts, clips",
                         grid(SIZES, WAYS, (True, False), (True, False), ({}, TIGHT)))
def test_agrees_with_float64(sizes, way, gathered, starts, clips):
    check(draw(sizes, *way, gathered, starts, clips), ISAS)


def test_the_clips_fire():
    case = draw(clips=TIGHT)
    with torch.no_grad():
        out, _, c = case.forward(case.leaves(), "native")
    assert 0.1 < (c.abs() == np.float32(0.3)).float().mean() < 0.9
    assert 0.1 < (out.abs() == np.float32(0.08)).float().mean() < 0.9


@pytest.mark.parametrize("clip", ["cell_clip", "proj_clip"])
def test_a_value_on_its_limit_passes_gradients_as_clamp_does(clip):
    """Weights of zero but for a bias make every value of a layer the same known number, which is then the limit."""
    case = draw((2, 3, 2), [1, 1])
    still = {name: each * 0 for name, each in case.tensors.items()}
    for d in (0, 1):
        still[f"b_{d}"][3:6] = 1.0  # j
        still[f"p_{d}"] += 0.25
    grads = [*case.grads[:2], case.grads[2] * (clip == "cell_clip")]  # else one path goes around the clip of h
    case = dataclasses.replace(case, tensors=still, grads=grads)
    with torch.no_grad():
        out, _, c = case.forward(case.leaves(), "native")
    limit = float((c if clip == "cell_clip" else out).abs().max())
    for value, passes in ((limit, True), (float(np.nextafter(np.float32(limit), np.float32(0))), False)):
        grads = dataclasses.replace(case, clips={clip: value}).gradients("native")
        assert bool(grads["b_0"][:6].any()) == passes


@pytest.mark.parametrize("sizes", [(11, 37, 11), (16, 24, 24), (64, 130, 64)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(sizes):
    case = draw(sizes, RAGGED, None, True, True, TIGHT)
    expected, *others = (on_threads(threads, case.gradients, "native") for threads in (1, 2, 3, 4, 7))
    assert all(torch.equal(other[name], each) for other in others for name, each in expected.items())


def test_the_forward_has_the_bits_of_inference():
    for sizes in SIZES:
        case = draw(sizes, starts=True, clips=TIGHT)
        with torch.no_grad():
            expected = case.forward(case.leaves(), "native")
        assert all(torch.equal(one, other) for one, other in zip(case.forward(case.leaves(), "native"), expected))


@pytest.mark.parametrize("wanted", ["inputs", "h", "c", "w_0", "b_1", "p_0", "initial_c"])
def test_one_operand_alone(wanted):
    case = draw(starts=True, clips=TIGHT)
    everything = case.gradients("native")
    leaves = {name: each.detach().requires_grad_(name == wanted) for name, each in case.leaves().items()}
    torch.autograd.backward(case.forward(leaves, "native"), [each.float() for each in case.grads])
    assert torch.equal(leaves[wanted].grad, everything[wanted])
    assert all(each.grad is None for name, each in leaves.items() if name != wanted)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradient_of_one_result_alone(which):
    case = draw()
    expected, leaves = case.leaves(torch.float64), case.leaves()
    case.forward(expected, "reference")[which].backward(case.grads[which])
    case.forward(leaves, "native")[which].backward(case.grads[which].float())
    for name, each in leaves.items():
        assert relative_error(each.grad, expected[name].grad) < GRADIENT_AGAINST_FLOAT64


def test_two_backwards_through_one_graph_add_up():
    case = draw()
    leaves = case.leaves()
    loss = sum((each * grad.float()).sum() for each, grad in zip(case.forward(leaves, "native"), case.grads))
    loss.backward(retain_graph=True)
    once = {name: each.grad.clone() for name, each in leaves.items()}
    loss.backward()
    assert all(torch.equal(each.grad, 2 * once[name]) for name, each in leaves.items())


def test_an_edit_between_calls_is_seen():
    case = draw()
    leaves = case.leaves()
    case.gradients("native")
    for _ in range(3):
        with torch.no_grad():
            for each in leaves.values():
                each.mul_(1.125)
        case = dataclasses.replace(case, tensors={name: each.detach().double() for name, each in leaves.items()})
        for each in leaves.values():
            each.grad = None
        torch.autograd.backward(case.forward(leaves, "native"), [each.float() for each in case.grads])
        fresh = case.gradients("native")
        assert all(torch.equal(each.grad, fresh[name]) for name, each in leaves.items())


@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_steps_of_an_optimizer_are_seen(how):
    """Fused optimizers do not count as edits: inference after a step must not run on what was packed before."""
    case = draw()
    leaves = case.leaves()
    optimizer = torch.optim.AdamW(leaves.values(), lr=0.05, **{how: True})
    for _ in range(3):
        optimizer.zero_grad()
        case.forward(leaves, "native")[0].square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            found = case.forward(leaves, "native")[0]
            fresh = case.forward({name: each.clone() for name, each in leaves.items()}, "native")[0]
        assert torch.equal(found, fresh)


@pytest.mark.parametrize("name", ["inputs", "w_1", "p_0"])
def test_an_edit_between_forward_and_backward_is_refused(name):
    case = draw()
    leaves = case.leaves()
    out = case.forward(leaves, "native")[0]
    with torch.no_grad():
        leaves[name].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_outputs_may_be_edited():
    case = draw()
    leaves, expected = case.leaves(), case.leaves()
    (case.forward(leaves, "native")[0].mul_(3.0)).sum().backward()
    (case.forward(expected, "native")[0] * 3.0).sum().backward()
    assert torch.equal(leaves["w_0"].grad, expected["w_0"].grad)


def test_no_second_derivatives():
    case = draw()
    leaves = case.leaves()
    grad, = torch.autograd.grad(case.forward(leaves, "native")[0].sum(), leaves["w_0"], create_graph=True)
    with pytest.raises(RuntimeError, match="projected_lstm: the native backend has no second derivatives"):
        grad.sum().backward()


def test_nothing_to_run():
    case = draw(lengths=[0, 0])
    grads = case.gradients("native")
    assert torch.equal(grads["h"], case.grads[1].float()) and torch.equal(grads["c"], case.grads[2].float())
    assert not grads["w_0"].any() and not grads["p_1"].any()


def test_other_instruction_sets_are_refused():
    if len(ISAS) < 2:
        pytest.skip("one instruction set here")
    case = draw()
    with isa(ISAS[0]):
        out = case.forward(case.leaves(), "native")[0]
    with isa(ISAS[1]), pytest.raises(ValueError, match="packed: expected a training forward for"):
        out.sum().backward()


@pytest.mark.parametrize("gathered", [True, False])
def test_registered_ops(gathered):
    case = draw(gathered=gathered, starts=True, clips=TIGHT)
    ops = torch.ops.elmo_fast
    with RecordedOps() as ran:
        case.gradients("native")
    recorded = [(func, args) for func, args in ran.calls if "projected_lstm" in func.name()]
    assert [func for func, _ in recorded] == [ops.projected_lstm.default, ops.projected_lstm_backward.default]
    for func, args in recorded:
        def detached(each, func=func):
            return each.detach().clone().requires_grad_(each.is_floating_point() and func is recorded[0][0])

        torch.library.opcheck(func, tree_map_only(torch.Tensor, detached, args))


def test_gradcheck_of_what_the_native_gradients_are_held_to():
    for backend in ("reference", "torch"):
        case = draw((2, 4, 3), [2, 1, 3], np.array([0, 0, 1]), True, True, {"cell_clip": 0.4, "proj_clip": 0.2})
        leaves = case.leaves(torch.float64)
        operands = [*leaves.values()]

        def run(*given, case=case, names=tuple(leaves), backend=backend):
            return case.forward(dict(zip(names, given)), backend)

        assert torch.autograd.gradcheck(run, operands)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=9), st.integers(1, 40),
       st.integers(1, 24), st.integers(1, 24), st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_any_shape_agrees_with_float64(sentences, dim, projection, width, gathered, starts, seed):
    lengths, slots = (np.array(each) for each in zip(*sentences))
    check(draw((width, dim, min(projection, dim)), lengths, slots, gathered, starts,
               {"cell_clip": 0.4, "proj_clip": 0.2}, seed))
