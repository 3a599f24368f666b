"""Stand-ins for what the CUDA LSTM finds on a GPU: memory, captures, and the native module over the kernels' PTX."""

from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops.cuda import blocks, choice, lstm, persistent
from tests.support.fake_graphs import FakeCapture
from tests.support.gpu_lstm import take_way
from tests.support.lstm_kernel_case import SMALL
from tests.support.ptx_machine import machine


@pytest.fixture(autouse=True)
def arenas(monkeypatch):
    """A cache of its own."""
    monkeypatch.setattr(lstm, "_arenas", blocks.Arenas())
    return lstm._arenas


@pytest.fixture
def operands_of(request, monkeypatch):
    """The function of a call's operands for the way that the parameter names."""
    return take_way(request.param, monkeypatch)


@pytest.fixture
def graphs(monkeypatch, arenas):
    """Captures are faked; gives the list of them, one for each arena."""
    made = []

    def buffers_of(capture):
        arena = next(each for each in arenas.kept.values() if each.capture is capture)
        layers = [of for bucket in arena._buckets.values() for of in bucket.graphs]
        holders = [arena, *arena._buckets.values(), *layers]
        return [each for holder in holders for each in vars(holder).values() if isinstance(each, torch.Tensor)]

    def capture_on(device):
        made.append(FakeCapture(buffers_of))
        return made[-1]

    monkeypatch.setattr(lstm, "capture_on", capture_on)
    return made


_CACHED = persistent.lacks, persistent.plan, persistent._watch  # themselves, whatever a test puts in their place


def _forget():
    for cached in _CACHED:
        cached.cache_clear()


@pytest.fixture
def uncached():
    """Nothing is remembered of a device, before and after."""
    _forget()
    yield _forget
    _forget()


@pytest.fixture(params=[90])
def native(request, monkeypatch, uncached):
    """The kernels' PTX in the place of the native module, which collects the calls, and the persistent path forced."""
    kernel, calls = machine(request.param), []

    def cuda_lstm_run(**call):
        calls.append(call)
        if module.refuses:
            raise RuntimeError("CUDA: launch: too many blocks in cooperative launch")
        kernel.cuda_lstm_run(**call)

    module = SimpleNamespace(calls=calls, refuses=False, cuda_lstm_run=cuda_lstm_run,
                             cuda_lstm_plan=kernel.cuda_lstm_plan)
    monkeypatch.setattr(persistent, "native_module", lambda: (module, None))
    monkeypatch.setattr(persistent, "lacks", lambda device: None)
    monkeypatch.setattr(persistent, "limits", lambda device: SMALL[request.param])
    monkeypatch.setenv(choice.VARIABLE, choice.PERSISTENT)
    yield module
    monkeypatch.undo()
