"""Stand-ins for what the CUDA LSTM finds on a GPU: memory, captures, and the native module over the kernels' PTX."""

from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops.cuda import blocks, choice, lstm, persistent, steps
from tests.support.fake_graphs import FakeCapture
from tests.support.gpu_lstm import FIRING, text
from tests.support.lstm_kernel_case import SMALL
from tests.support.ptx_machine import machine


@pytest.fixture(autouse=True)
def arenas(monkeypatch):
    """A cache of its own."""
    monkeypatch.setattr(lstm, "_arenas", blocks.Arenas())
    return lstm._arenas


WAYS = ["a table in full", "unique rows of a block", "packed rows", "small groups"]


class _RowsOnDevice(lstm._Call):
    """Takes the host's rows for ones that only the device can read."""

    def __init__(self, steps, inputs, rows, *settings):
        super().__init__(steps, inputs, rows, *settings)
        self.on_host, self.rows = False, rows


@pytest.fixture(params=WAYS)
def operands_of(request, monkeypatch):
    """The function of a call's operands whose projections come that way; in small groups slots step by turns."""
    if request.param == "packed rows":
        monkeypatch.setattr(lstm, "_Call", _RowsOnDevice)
    if request.param == WAYS[0]:
        return text
    monkeypatch.setattr(blocks, "rows_held", lambda layer: 14 if "rows" in request.param else 8)
    if request.param == "small groups":
        monkeypatch.setitem(steps.MOST_SLOTS, "graph", 4)

    def many_rows(of=FIRING):  # besides those read: they are not projected in full
        inputs, index, state = text(of)
        return torch.cat([torch.full_like(inputs, torch.nan)] * 9 + [inputs]), index + 9 * len(inputs), state

    return many_rows


@pytest.fixture
def graphs(monkeypatch, arenas):
    """Captures are faked; gives the list of them, one for each arena."""
    made = []

    def capture_on(device):
        made.append(FakeCapture(arenas))
        return made[-1]

    monkeypatch.setattr(lstm, "capture_on", capture_on)
    return made


_CACHED = persistent.lacks, persistent.plan, persistent._watch  # themselves, whatever a test puts in their place


@pytest.fixture
def uncached():
    """Nothing is remembered of a device, before and after."""
    for cached in _CACHED:
        cached.cache_clear()
    yield
    for cached in _CACHED:
        cached.cache_clear()


@pytest.fixture(params=[90])
def native(request, monkeypatch, uncached):
    """The kernels' PTX in place of the native module, which collects the calls, and that path forced; None: neither."""
    if request.param is None:
        yield None
        return
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
