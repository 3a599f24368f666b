"""The choice between the paths of the CUDA LSTM, and reasons against the persistent path."""

import contextlib
import logging
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.engine.backend import log_once
from elmo_fast.ops import doctor
from elmo_fast.ops.projected_lstm.arguments import flat_weights
from elmo_fast.ops.projected_lstm.cuda import blocks, persistent
from elmo_fast.ops.projected_lstm.cuda.choice import GRAPH, PERSISTENT
from tests.support.gpu_lstm import check, ragged, run, weights_of
from tests.support.lstm_on_ptx import SMALL
from tests.support.op_cases import TIGHT, layer, lstm_case
from tests.support.ptx_machine import DEVICES

pytestmark = pytest.mark.long  # building the PTX interpreter takes minutes
CPU, FIRING = torch.device("cpu"), lstm_case(clips=TIGHT)


@pytest.mark.parametrize("precision, slots, path, launches", [
    ("medium", 9, None, 1), ("medium", 64, None, 1), ("medium", 65, None, 0), ("medium", 65, PERSISTENT, 2),
    ("medium", 9, GRAPH, 0), ("highest", 9, None, 0), ("high", 9, None, 0)])
def test_the_choice_of_a_path(precision, slots, path, launches, native):
    check(ragged([slots, slots, 3]), precision, path=path)
    assert len(native.calls) == launches


def test_operands_in_bf16_run_in_graphs(native):
    """Layers with a large weight, or without `proj_clip`, have operands in bf16."""
    check(ragged([9, 9, 3], bf16=True), "medium")
    check(lstm_case(), "medium")
    assert not native.calls


def test_a_path_that_cannot_run(native, caplog):
    log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            check(FIRING, "highest")
    assert caplog.text.count("the persistent path is passed over: its operands are fp16") == 1
    with pytest.raises(RuntimeError, match="path: the persistent path was asked for and .* its operands are fp16"):
        run(FIRING, "highest", path=PERSISTENT)
    with pytest.raises(ValueError, match="path: expected one of graph, persistent, got 'A'"):
        run(FIRING, "medium", path="A")


def test_doctor_launches_nothing(native, monkeypatch):
    lines = doctor.lstm_lines(CPU)
    assert "LSTM graph   runs, its small kernels torch operations: Triton has no kernels for cpu (cpu)" in lines
    assert lines[1].startswith("LSTM persistent  runs in 'medium' for up to 64 slots") and not native.calls
    monkeypatch.setattr(persistent, "lacks", lambda device: "because")
    assert "LSTM persistent  not there: because (cpu)" in doctor.lstm_lines(CPU)


def test_a_refused_launch_runs_in_graphs(native, caplog):
    persistent._warn_once.cache_clear()
    weights = weights_of(FIRING)
    native.machine.set_device(0, *DEVICES[native.generation][1:])
    for _ in range(2):
        check(FIRING, "medium", weights)
    with pytest.raises(RuntimeError, match="path: the persistent path was asked for, and its launch was refused"):
        run(FIRING, "medium", weights, path=PERSISTENT)
    assert caplog.text.count("a launch was refused on cpu (CUDA: launch: 0 blocks of a cooperative launch fit)") == 1


@pytest.mark.parametrize("dim, inference, reason", [
    (11, False, "the layer has no projection"), (5000, False, "the cells do not fit"),
    (37, True, "the model was made in inference mode")])
def test_reasons_of_a_layer(dim, inference, reason, native):
    with torch.inference_mode(inference):
        weights = flat_weights(layer(lstm_case((11, dim, 11)).leaves(wanted=[])))
    assert reason in persistent.why_not(CPU, blocks.operands(weights, "medium", 3.0), 200)


@pytest.mark.parametrize("has_cuda, device, capability, reason", [
    (None, "cpu", None, "because"),
    (False, "cpu", None, "the native module was built without CUDA: nvcc was not found"),
    (True, "cpu", None, "it runs on NVIDIA GPUs, and this is a cpu"),
    (True, "cuda:0", (7, 5), "it needs compute capability 8.0, and this device has 7.5"),
    (True, "cuda:0", (9, 0), None)])
def test_reasons_of_a_device(has_cuda, device, capability, reason, monkeypatch):
    module = None if has_cuda is None else SimpleNamespace(has_cuda=has_cuda, cuda_skipped="nvcc was not found")
    monkeypatch.setattr(persistent, "limits", lambda device: SMALL[90])
    monkeypatch.setattr(persistent, "native_module", lambda: (module, "because"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: capability)
    assert persistent.lacks(torch.device(device)) == reason


@pytest.mark.parametrize("capability, translates", [((9, 0), False), ((11, 0), True)])
def test_an_error_of_a_device_is_not_kept(capability, translates, monkeypatch, caplog):
    """A device may be out of memory at first. The second call finds its limits."""
    devices = []

    def cuda_device(index):
        devices.append(index)
        if len(devices) == 1:
            raise RuntimeError("CUDA: kernel for this device: out of memory")
        return SMALL[90]

    module = SimpleNamespace(has_cuda=True, cuda_device=cuda_device, cuda_has_code_for=lambda major: major == 9)
    monkeypatch.setattr(persistent, "native_module", lambda: (module, None))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: capability)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    persistent._warn_once.cache_clear()
    device = torch.device("cuda", 3)
    assert persistent.lacks(device) == "CUDA: kernel for this device: out of memory"
    assert persistent.lacks(device) is persistent.lacks(device) is None and devices == [3, 3]
    assert caplog.text.count("translates the LSTM's kernels for compute capability 11.0") == translates
    persistent.limits.cache_clear()
