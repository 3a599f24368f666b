"""The persistent path of the CUDA LSTM on the CPU: the op over the kernels' PTX, and why it is passed over."""

import logging
from types import SimpleNamespace

import pytest
from tests.ops.cuda import test_cuda_lstm_graph as graph_tests
from tests.support import op_cases
import torch
from tests.support.models import SHAPES, options
from tests.support.ptx_machine import machine
from tests.ops.cuda.test_cuda_lstm_graph import FIRING, INITIAL_STATE, SLOTS, WAYS, check, layer, run
from elmo_fast.testing.tolerances import AGAINST_FLOAT64

from elmo_fast.ops.cuda import choice, operands, persistent
from elmo_fast.ops.schemas import flat_weights

CPU = torch.device("cpu")
DEVICES = {90: (12, 232448, 1, 3, 6), 80: (12, 166912, 0, 0, 0)}
PAIRS = {"argnames": "native, projected", "argvalues": list(zip((90, 80, 80, 90), WAYS)), "indirect": True}
arenas, projected = graph_tests.arenas, graph_tests.projected


def forget():
    for cached in (persistent.lacks, persistent.plan, persistent._watch):
        cached.cache_clear()


@pytest.fixture(params=[90])
def native(request, monkeypatch):
    """The kernels' PTX in the place of the native module, which collects the calls, and the persistent path forced."""
    kernel, calls = machine(request.param), []

    def cuda_lstm_run(**call):
        calls.append(call)
        if module.refuses:
            raise RuntimeError("CUDA: launch: too many blocks in cooperative launch")
        kernel.cuda_lstm_run(**call)

    module = SimpleNamespace(calls=calls, refuses=False, cuda_lstm_run=cuda_lstm_run, **{
        name: getattr(kernel, name) for name in ("cuda_lstm_plan", "cuda_lstm_packed_size", "cuda_lstm_pack")})
    forget()
    monkeypatch.setattr(persistent, "native_module", lambda: (module, None))
    monkeypatch.setattr(persistent, "lacks", lambda device: None)
    monkeypatch.setattr(persistent, "limits", lambda device: DEVICES[request.param])
    monkeypatch.setenv(choice.VARIABLE, choice.PERSISTENT)
    yield module
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(**PAIRS)
def test_agrees_with_float64(native, projected):
    inputs, index, state = op_cases.draw(FIRING, torch.float32)
    lost = tuple(each[:3] * torch.nan for each in state)  # what the sequences' starts replace
    check(FIRING, "medium", inputs, index, lost, slots=SLOTS, initial_state=INITIAL_STATE)
    assert all(call["operand"] == 0 and call["scale"] and call["fresh_h"] for call in native.calls)
    check(SHAPES["no clips"], "medium", inputs, index, state, limit=AGAINST_FLOAT64["medium-bf16"])
    assert (native.calls[-1]["operand"], native.calls[-1]["scale"], native.calls[-1]["fresh_c"]) == (1, 0, 0)


@pytest.mark.parametrize("native, shape, state", [
    (90, "clips that fire", "carry"), (80, "four layers", "carry"), (80, "clips that fire", "zero"),
    (90, "no skip connections", "warm")], indirect=["native"])
def test_states_over_ragged_batches(native, shape, state, monkeypatch):
    graph_tests.check_states_over_ragged_batches(shape, state, "medium", monkeypatch)
    assert native.calls and all(call["nanoseconds"] for call in native.calls)


@pytest.mark.parametrize("native, slots, launches", [
    (90, 1, [1]), (80, 2, [2]), (90, 7, [7]), (80, 16, [16]), (90, 32, [32]), (80, 64, [64]),
    (90, 200, [64, 64, 64, 8])], indirect=["native"])
def test_any_number_of_slots(native, slots, launches, arenas):
    """Ragged, sequences that start within slots, and empty slots, which keep their state; then with new weights."""
    inputs, _, _ = op_cases.draw(FIRING, torch.float32)
    state = tuple(torch.randn(slots + 3, 2 * size) / 4 for size in (11, 37))
    lengths = [0, 0, *(3 + number % 3 for number in range(slots)), 0]
    more = {"lengths": [*lengths, *lengths], "slots": [*range(slots + 3)] * 2, "initial_state": INITIAL_STATE}
    weights = layer()
    check(FIRING, "medium", inputs, torch.arange(2 * sum(lengths)) % 6, state, **more, weights=weights)
    found = run(FIRING, "medium", inputs, torch.arange(sum(lengths)) % 6, state, lengths=lengths, weights=weights)
    assert [call["slots"] for call in native.calls] == 2 * launches
    assert {call["packed"] for call in native.calls} == {native.calls[0]["packed"]}
    assert {call["state_stride"] for call in native.calls} == {slots + 3}
    assert all(torch.equal(new[row], old[row]) for new, old in zip(found[1], state) for row in (0, 1, -1))
    weights[1][2].mul_(0.5)
    check(FIRING, "medium", inputs, torch.arange(6), tuple(each[:2] for each in state), lengths=[3, 3], weights=weights)
    arena, = arenas.kept.values()
    assert len(arena._scratch) == max(call["scratch_size"] for call in native.calls)


@pytest.mark.parametrize("native, refuses, warning", [
    (90, True, "a launch was refused on cpu before (CUDA: launch: too many blocks in cooperative launch)"),
    (90, False, "a launch gave up waiting on cpu before, and a slower kernel did its work"),
    (80, False, "a launch gave up waiting on cpu before, and a slower kernel did its work")], indirect=["native"])
def test_a_launch_that_fails_is_the_last(native, refuses, warning, caplog, monkeypatch):
    """What was refused runs in graphs at once; what gave up was replayed on the device."""
    monkeypatch.setattr(persistent, "_NANOSECONDS", 0)
    monkeypatch.setenv(choice.VARIABLE, "")
    monkeypatch.setattr(choice, "machine", str)
    monkeypatch.setattr(choice, "_choices", SimpleNamespace(path=lambda *key: choice.PERSISTENT))
    native.refuses, given, weights = refuses, op_cases.draw(FIRING, torch.float32), layer()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            check(FIRING, "medium", *given, weights=weights)
    assert len(native.calls) == 1 and caplog.text.count(warning) == 1
    monkeypatch.setenv(choice.VARIABLE, choice.PERSISTENT)
    with pytest.raises(RuntimeError, match="was asked for and does not run here: a launch "):
        run(FIRING, "medium", *given, weights=weights)


@pytest.mark.parametrize("precision, dim, inference, reason", [
    ("highest", 37, False, "16-bit, which precision 'medium' alone"), ("medium", 11, False, "without a projection"),
    ("medium", 5000, False, "the cells do not fit"), ("medium", 37, True, "made in inference mode"),
    ("medium", 37, False, None)])
def test_reasons_of_a_layer(precision, dim, inference, reason, monkeypatch):
    native_module, _ = persistent.native_module()
    if not hasattr(native_module, "cuda_lstm_plan"):
        pytest.skip("the native module is not built")
    monkeypatch.setattr(persistent, "lacks", lambda device: None)
    monkeypatch.setattr(persistent, "limits", lambda device: DEVICES[90])
    persistent._watch.cache_clear()
    with torch.inference_mode(inference):
        weights = flat_weights(layer(options({"dim": dim})))
    found = persistent.why_not(CPU, operands.operands(weights, precision, 3.0), weights, 200)
    assert str(reason) in str(found)


def test_reasons_of_a_device(monkeypatch):
    cpu_only, module = (SimpleNamespace(has_cuda=has, cuda_skipped="nvcc was not found") for has in (False, True))
    gpu, found = torch.device("cuda", 0), []
    monkeypatch.setattr(persistent, "limits", lambda device: DEVICES[90])
    for given, device, capability in ((None, CPU, None), (cpu_only, CPU, None), (module, CPU, None),
                                      (module, gpu, (7, 5)), (module, gpu, (9, 0))):
        forget()
        monkeypatch.setattr(persistent, "native_module", lambda: (given, "because"))  # noqa: B023
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: capability)  # noqa: B023
        found.append(persistent.lacks(device))
    forget()
    assert found == [
        "because", "the native module was built without CUDA: nvcc was not found",
        "it runs on NVIDIA GPUs, and this is a cpu", "it needs compute capability 8.0, and this device has 7.5", None]
