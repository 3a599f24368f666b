"""Training with the native LSTM and char-CNN: bits, single operands, clips, registered ops, fine-tuning."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map_only

from elmo_fast import Elmo, batch_to_ids
from elmo_fast.testing import GRADIENT_AGAINST_FLOAT64, relative_error
from tests.support import op_cases
from tests.support.engines import GPU_GRADIENTS, HIGHEST, NATIVE, TRITON, Engine
from tests.support.grid import grid, mostly_long
from tests.support.models import SENTENCES, SHAPES, bilm, files, options
from tests.support.op_cases import SLOTS, TIGHT, RecordedOps, char_cnn_case, linear_case, lstm_case, on_threads

WIDE = options(char_cnn={"filters": [[1, 33], [2, 4], [6, 47], [7, 3]]})
LSTM, CHAR_CNN = lstm_case(starts=True, clips=TIGHT), char_cnn_case(WIDE)
LINEAR = linear_case(9, 11, 5)


@pytest.mark.parametrize("case", [
    *(lstm_case(sizes, starts=True, clips=TIGHT) for sizes in [(11, 37, 11), (16, 24, 24), (64, 130, 64)]), CHAR_CNN])
def test_any_number_of_threads_gives_the_same_bits(case):
    expected, *results = (on_threads(threads, case.gradients, NATIVE) for threads in (1, 2, 3, 4, 7))
    assert all(torch.equal(gradients[name], values) for gradients in results for name, values in expected.items())


@pytest.mark.parametrize("engine, case", grid(HIGHEST, [
    *(lstm_case(sizes, starts=True, clips=TIGHT) for sizes in [(11, 37, 11), (16, 24, 24), (33, 70, 45), (1, 1, 1)]),
    *(char_cnn_case(of) for of in (*SHAPES.values(), WIDE))], together=1))
@pytest.mark.parametrize("broken", [None, float("nan"), float("inf")])
def test_saving_for_backward_does_not_change_the_bits(engine, case, broken):
    if broken is not None:
        first, *rest = case.operands
        table = case.operands[first].clone()
        table[len(table) // 2, 0] = broken
        case = dataclasses.replace(case, operands={first: table} | {name: case.operands[name] for name in rest})
    alone, recorded = case.run(engine), case.gradients(engine)
    assert all(engine.same(result, recorded[k]) for k, result in enumerate(alone))
    assert broken is not None or not any(result.isnan().any() for result in alone)


@pytest.mark.parametrize("engine, case, operand", [
    *((NATIVE, case, name) for case in (LSTM, CHAR_CNN) for name in case.operands),
    *((engine, LSTM, name) for engine in GPU_GRADIENTS for name in LSTM.operands)])
def test_one_operand_alone(engine, case, operand):
    gradients = case.gradients(engine, [operand])
    assert torch.equal(gradients[operand], case.gradients(engine)[operand])
    assert [name for name in gradients if isinstance(name, str)] == [operand]


@pytest.mark.parametrize("case, name", [(LSTM, "inputs"), (LSTM, "w_1"), (LSTM, "p_0"), (CHAR_CNN, "w_0")])
def test_an_edit_between_forward_and_backward_is_refused(case, name):
    leaves = case.leaves()
    results = case.call(leaves, "native")
    with torch.no_grad():
        leaves[name].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        case.backward(results)


@pytest.mark.parametrize("case, op", [(LSTM, "projected_lstm"), (CHAR_CNN, "char_cnn")])
def test_no_second_derivatives(case, op):
    leaves = case.leaves()
    grad, = torch.autograd.grad(case.call(leaves, "native")[0].square().sum(), leaves["w_0"], create_graph=True)
    with pytest.raises(RuntimeError, match=f"{op}: the native backend has no second derivatives"):
        grad.sum().backward()


@pytest.mark.parametrize("engine", [NATIVE, *GPU_GRADIENTS], ids=str)
@pytest.mark.parametrize("clip", ["cell_clip", "proj_clip"])
def test_a_value_at_its_clip_passes_gradients_as_clamp_does(clip, engine):
    """Weights of 0, one bias and a constant projection make all values of a layer one known number, the limit."""
    case = lstm_case((2, 3, 2), [1, 1])
    operands = {name: values * 0 for name, values in case.operands.items()}
    for d in (0, 1):
        operands[f"b_{d}"][3:6] = 1.0  # j
        operands[f"p_{d}"] += 0.25
    results = dataclasses.replace(case, operands=operands).gradients(engine)
    limit = float(results[2 if clip == "cell_clip" else 0].abs().max())
    for value, passes in ((limit, True), (float(np.nextafter(np.float32(limit), np.float32(0))), False)):
        limited = dataclasses.replace(case, operands=operands, clips={clip: value})
        gradients = limited.gradients(engine, of=slice(3 if clip == "cell_clip" else 2))  # h's clip does not affect c
        assert bool(gradients["b_0"][:6].any()) == passes


@pytest.mark.parametrize("engine, case, op", mostly_long([
    (NATIVE, CHAR_CNN, "char_cnn"), (NATIVE, LINEAR, "linear"), (NATIVE, op_cases.highway_case(5, 7), "highway"),
    *((NATIVE, case, "projected_lstm") for case in (LSTM, lstm_case(gathered=False, slots=SLOTS))),
    *((engine, CHAR_CNN, "char_cnn") for engine in TRITON), *((engine, LINEAR, "linear") for engine in TRITON),
    *((engine, op_cases.highway_case(5, 7), "highway") for engine in TRITON[:1])], quick=3))  # in fp32, as on the CPU
def test_registered_ops(engine, case, op):
    with RecordedOps() as ops:
        case.run(engine)
        case.gradients(engine, [*case.operands][::2])
    # Products with gradients run in torch, or with Triton's forward.
    trained = [op] * (engine in TRITON) if op in ("linear", "highway") else [op, f"{op}_backward"]
    assert [func.name() for func, _ in ops.calls] == [f"elmo_fast::{name}" for name in (op, *trained)]
    for number, (func, args) in enumerate(ops.calls):
        def detached(value, saves=number == 1):
            return value.detach().clone().requires_grad_(value.is_floating_point() and saves)

        with engine.active():
            torch.library.opcheck(func, tree_map_only(torch.Tensor, detached, args))


@pytest.mark.parametrize("backend", ["native", "torch", "reference"])
def test_low_has_no_gradients(backend):
    model, ids = bilm(backend=backend, precision="low", requires_grad=True, state="zero"), batch_to_ids(SENTENCES)
    with pytest.raises(ValueError, match="expected one of highest, high, medium where gradients are recorded"):
        model(ids)
    with torch.no_grad():
        expected = model(ids).activations[-1]
    frozen = bilm(backend=backend, precision="low", state="zero")
    factor = torch.ones((), requires_grad=True)
    (frozen(ids).activations[-1] * factor).sum().backward()
    assert torch.equal(factor.grad, expected.sum())


@pytest.mark.parametrize("shape, state", grid(["two layers", "no projection", "clips that fire"],
                                              ["carry", "zero", "warm"], together=1))
def test_fine_tuning_has_the_gradients_of_torch(tmp_path, shape, state):
    paths, grads = files(tmp_path, SHAPES[shape]), {}
    engines = {backend: Engine(backend) for backend in ("torch", "native", "auto")} | dict(zip(["gpu"], GPU_GRADIENTS))
    for name, engine in engines.items():
        with engine.active():
            elmo = Elmo(*map(str, paths), 1, requires_grad=True, dropout=0, state=state,
                        backend="native" if name == "gpu" else name)
            for sentences in (SENTENCES, SENTENCES[:3]):
                elmo(batch_to_ids(sentences))["elmo_representations"][0].sin().sum().backward()
            grads[name] = {name: p.grad for name, p in elmo.named_parameters() if p.grad is not None}
    assert all(grads["torch"].keys() == by_name.keys() for by_name in grads.values()) and len(grads["torch"]) > 10
    for name, expected in grads["torch"].items():
        for engine in engines:
            assert relative_error(grads[engine][name], expected) < GRADIENT_AGAINST_FLOAT64, (engine, name)
        assert torch.equal(grads["auto"][name], grads["native"][name])
