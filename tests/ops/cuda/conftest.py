"""Stand-ins for what the CUDA LSTM finds on a GPU: memory, captures, and the native module over the kernels' PTX."""

import pytest

from elmo_fast.ops.projected_lstm.cuda import blocks, lstm
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


@pytest.fixture(params=["sm_90", "sm_80"])
def native(request, monkeypatch):
    """`NativeOnPtx`, on which the persistent path runs; None where the parameter says that the graph path does."""
    with lstm_on_ptx(request.param, monkeypatch) as module:
        yield module
