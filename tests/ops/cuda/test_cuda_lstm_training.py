"""The gradients of the LSTM on a GPU, computed on the CPU, with either kind of pointwise kernels, against float64.

tests/ops/test_gradients has what they share with the C++ engine's.
"""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from elmo_fast.ops import backend
from elmo_fast.ops.projected_lstm import gradients
from elmo_fast.ops.projected_lstm import pytorch as plain
from elmo_fast.ops.projected_lstm.arguments import LstmCall
from elmo_fast.ops.projected_lstm.cuda import lstm, pointwise, training
from elmo_fast.testing import AGAINST_FLOAT64
from tests.support import cuda_ops
from tests.support.engines import REFERENCE, Engine
from tests.support.gpu_lstm import check_gradients
from tests.support.grid import grid
from tests.support.op_cases import SLOTS, TIGHT, RecordedOps, lstm_case

pytestmark = pytest.mark.skipif(not cuda_ops.MAY_BE_REGISTERED, reason="this torch does not replace an implementation")
TORCH, *TRITON = (Engine("cuda", kernels) for kernels in (None, "triton sm_90", "triton sm_80"))
SIZES = [(11, 37, 11), (16, 24, 24), (33, 70, 45), (7, 5, 2), (1, 1, 1)]  # I, D, P
WAYS = {
    "ragged": {}, "clipped": {"clips": TIGHT}, "one token": {"lengths": [1]}, "nothing": {"lengths": [0, 0]},
    "starts": {"slots": SLOTS, "starts": True, "clips": TIGHT}, "halves": {"gathered": False, "slots": SLOTS},
    "equal lengths": {"lengths": [4] * 9, "gathered": False, "starts": True}}
STARTS = lstm_case(**WAYS["starts"])


@pytest.mark.parametrize("sizes, way", grid(SIZES, [*WAYS], together=1))
def test_gradients_agree_with_float64(sizes, way):
    lstm_case(sizes, **WAYS[way]).check(TORCH)


@pytest.mark.parametrize("engine", TRITON, ids=str)
@pytest.mark.parametrize("case", [STARTS, lstm_case((9, 600, 20), [2, 3], clips=TIGHT), lstm_case((5, 11, 11))],
                         ids=["starts", "two blocks of cells", "no projection"])
def test_triton_kernels_agree_with_float64(engine, case):
    case.check(engine)


def test_clips_of_the_cases_fire():
    _, h, c = STARTS.run(REFERENCE)
    assert all(0.1 < (part.abs() >= clip - 1e-6).double().mean() < 0.9
               for part, clip in zip((c, h), STARTS.clips.values()))


@pytest.mark.parametrize("engine", [TORCH, *TRITON], ids=str)
@pytest.mark.parametrize("sizes", [(11, 37, 11), (11, 24, 24)])
def test_gradients_in_medium(engine, sizes):
    """Clips do not fire: a cell that rounding takes over its limit has another gradient."""
    with engine.active():
        check_gradients(lstm_case(sizes, slots=SLOTS, starts=True), "medium", AGAINST_FLOAT64["bf16"])


@pytest.mark.parametrize("kernels", [None, "triton sm_80"])
def test_nan_and_infinity_pass(kernels):
    case = dataclasses.replace(STARTS, operands={name: each.clone() for name, each in STARTS.operands.items()})
    case.operands["c"][0, 3], case.operands["b_1"][5] = torch.nan, torch.inf
    with torch.no_grad():
        expected = case.run(REFERENCE)
    found = case.gradients(Engine("cuda", kernels))
    for number, truth in enumerate(expected):
        assert torch.equal(found[number].isnan(), truth.isnan())


def test_two_backwards_add_up_and_there_are_no_second_derivatives():
    with TORCH.active():
        leaves = STARTS.leaves()
        loss = sum((each * (k + 2)).sin().sum() for k, each in enumerate(STARTS.call(leaves, "cuda")))
        loss.backward(retain_graph=True)
        once = {name: each.grad.clone() for name, each in leaves.items()}
        loss.backward()
        assert all(torch.equal(each.grad, 2 * once[name]) for name, each in leaves.items())
        grad, = torch.autograd.grad(STARTS.call(leaves, "cuda")[0].square().sum(), leaves["w_0"], create_graph=True)
        with pytest.raises(RuntimeError, match="projected_lstm: the native backend has no second derivatives"):
            grad.sum().backward()


@pytest.mark.parametrize("case", [STARTS, lstm_case((16, 24, 24), gathered=False)], ids=["projection", "none"])
def test_registered_ops(case, monkeypatch):
    monkeypatch.setattr(gradients, "_saved_size", training.saved_size)
    with TORCH.active(), RecordedOps() as ran:
        case.backward(case.call(case.leaves(wanted=[*case.operands][::2]), "cuda"))
    assert [func.name() for func, _ in ran.calls] == ["elmo_fast::projected_lstm", "elmo_fast::projected_lstm_backward"]
    with cuda_ops.registered_on_cpu("projected_lstm"):
        for func, args in ran.calls:
            torch.library.opcheck(func, torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.detach(), args))


class _Operations(TorchDispatchMode):
    """Counts operations other than views; one of the pointwise `kernels` is one."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.kernels = SimpleNamespace(**{name: functools.partial(self._kernel, getattr(pointwise, name))
                                          for name in ("gates_saving", "gates_gradient")})

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.count += not function.is_view
        return function(*arguments, **(named or {}))

    def _kernel(self, function, *arguments):
        self.count += 1
        with _disable_current_modes():
            function(*arguments)


def operations(sizes, steps, kernels):
    """Those of a forward and of a backward over so many steps, by plain torch where `kernels` is None."""
    case, counts = lstm_case(sizes, [steps] * 3, gathered=False, clips=TIGHT), []
    call = LstmCall(**vars(case.given(case.leaves(), precision="highest", bounded=False)[0]))
    with _Operations() as seen, pytest.MonkeyPatch.context() as patch:
        if kernels is None:
            out, state = plain.projected_lstm(call)
            counts.append(seen.count)
            torch.autograd.backward([out, *state], [torch.ones_like(each) for each in (out, *state)])
        else:
            patch.setattr(lstm, "pointwise_of", lambda device: seen.kernels if kernels == "triton" else pointwise)
            arguments = call.arguments(save=True)
            with torch.no_grad():
                *results, saved = lstm.run(*arguments)
                counts.append(seen.count)
                lstm.run_backward(*results, saved, [True] * (3 + len(arguments.weights)) + [False] * 2, *arguments)
    return np.array([counts[0], seen.count - counts[0]])


@pytest.mark.parametrize("sizes, kernels, most", [
    ((11, 37, 11), "triton", (4, 4)), ((24, 24, 24), "triton", (3, 2)),
    ((11, 37, 11), "torch", (20, 28)), ((24, 24, 24), "torch", (19, 26))])
def test_operations_of_a_step(sizes, kernels, most):
    """Of both directions; the plain loop has 26 and 68, or 22 and 52 without a projection."""
    found, before = ((operations(sizes, 12, of) - operations(sizes, 4, of)) / 8 for of in (kernels, None))
    assert (found <= most).all() and (before >= (22, 52)).all(), (found, before)


def test_shapes_on_a_gpu():
    call = STARTS.given(STARTS.leaves(wanted=[]), precision="medium", bounded=False)[0]
    arguments = LstmCall(**vars(call)).arguments(save=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu = arguments._replace(
            weights=[torch.empty(each.shape, device="cuda") for each in arguments.weights],
            **{name: torch.empty(getattr(arguments, name).shape, device="cuda")
               for name in ("inputs", "h", "c", "initial_h", "initial_c")})
        *results, saved = torch.ops.elmo_fast.projected_lstm(*on_gpu)
        found = torch.ops.elmo_fast.projected_lstm_backward(*results, saved, [True] * 11, *on_gpu)
    expected, (out, h, c) = STARTS.leaves(), STARTS.run(REFERENCE)
    assert [each.shape for each in results] == [out.shape, h.shape, c.shape]
    assert [each.shape for each in found] == [expected[name].shape for name in (
        "inputs", "h", "c", "w_0", "b_0", "p_0", "w_1", "b_1", "p_1", "initial_h", "initial_c")]
    assert saved.device.type == "cuda" and saved.numel() == training.saved_size(arguments)


def test_auto_takes_them_on_a_gpu_but_for_16_bit_weights():
    operand = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32, requires_grad=True, is_meta=False)
    half = SimpleNamespace(**{**vars(operand), "dtype": torch.bfloat16})
    assert backend.resolve("projected_lstm", "auto", operand) == "native"
    assert backend.resolve("projected_lstm", "torch", operand) == "torch"
    assert backend.resolve("projected_lstm", "auto", half) == "torch"
