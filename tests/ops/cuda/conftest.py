"""Substitutes for a GPU in tests of the CUDA LSTM: memory, captures, and the native module that runs the PTX."""

import pytest

from elmo_fast.ops.projected_lstm.cuda import blocks, lstm
from tests.support.fake_graphs import FakeCapture
from tests.support.lstm_on_ptx import lstm_on_ptx


@pytest.fixture(autouse=True)
def arenas(monkeypatch):
    """A separate cache of arenas."""
    monkeypatch.setattr(lstm, "_arenas", blocks.Arenas())
    return lstm._arenas


@pytest.fixture
def graphs(monkeypatch, arenas):
    """Fake captures; returns their list, one per arena."""
    captures = []

    def capture_on(device):
        captures.append(FakeCapture(arenas))
        return captures[-1]

    monkeypatch.setattr(lstm, "capture_on", capture_on)
    return captures


@pytest.fixture(params=["sm_90", "sm_80"])
def native(request, monkeypatch):
    """`NativeOnPtx`, which runs the persistent path; None where the parameter selects the graph path."""
    with lstm_on_ptx(request.param, monkeypatch) as module:
        yield module
