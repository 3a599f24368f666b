"""Stand-ins for what the CUDA LSTM finds on a GPU: memory, captures, and the native module over the kernels' PTX."""

import contextlib

import pytest

from elmo_fast.ops.cuda import blocks, lstm
from tests.support.fake_graphs import FakeCapture
from tests.support.lstm_on_ptx import lstm_on_ptx


@pytest.fixture(autouse=True)
def arenas(monkeypatch):
    """A cache of its own."""
    monkeypatch.setattr(lstm, "_arenas", blocks.Arenas())
    return lstm._arenas


@pytest.fixture
def graphs(monkeypatch, arenas):
    """Captures are faked; gives the list of them, one for each arena."""
    made = []

    def capture_on(device):
        made.append(FakeCapture(arenas))
        return made[-1]

    monkeypatch.setattr(lstm, "capture_on", capture_on)
    return made


@pytest.fixture(params=[90, 80])
def native(request, monkeypatch):
    """What runs the steps: `NativeOnPtx` of a generation in place of the native module, and that path forced. None: the
    graph path, its small kernels PyTorch's operations or ("triton 90") Triton's of a generation, run as PTX."""
    if isinstance(request.param, str):
        from tests.support import triton_on_ptx

        triton_on_ptx.on_ptx(monkeypatch, int(request.param.split()[1]), registers=64)
    on_ptx = isinstance(request.param, int)
    with lstm_on_ptx(request.param, monkeypatch) if on_ptx else contextlib.nullcontext() as module:
        yield module
