"""Stand-ins for what the CUDA LSTM finds on a GPU: memory, captures, and the native module over the kernels' PTX."""

import contextlib

import pytest
import torch

from elmo_fast.ops.cuda import blocks, lstm
from tests.support.fake_graphs import FakeCapture
from tests.support.gpu_lstm import FIRING, text
from tests.support.lstm_on_ptx import lstm_on_ptx


@pytest.fixture(autouse=True)
def arenas(monkeypatch):
    """A cache of its own."""
    monkeypatch.setattr(lstm, "_arenas", blocks.Arenas())
    return lstm._arenas


WAYS = ["a table in full", "unique rows of a block", "small groups"]


@pytest.fixture(params=WAYS)
def operands_of(request, monkeypatch):
    """The function of a call's operands whose projections come that way; in small groups slots step by turns."""
    if request.param == WAYS[0]:
        return text
    monkeypatch.setattr(blocks, "rows_held", lambda layer: 8 if request.param == "small groups" else 14)
    if request.param == "small groups":
        monkeypatch.setitem(lstm.MOST_SLOTS, "graph", 4)

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


@pytest.fixture(params=[90])
def native(request, monkeypatch):
    """What runs the steps: `NativeOnPtx` of a generation in place of the native module, and that path forced. None: the
    graph path, its small kernels PyTorch's operations or ("triton 90") Triton's of a generation, run as PTX."""
    if isinstance(request.param, str):
        from tests.support import triton_on_ptx

        triton_on_ptx.on_ptx(monkeypatch, int(request.param.split()[1]), registers=64)
        monkeypatch.setattr(lstm, "pointwise_of", lambda device: triton_on_ptx.lstm_pointwise)
    on_ptx = isinstance(request.param, int)
    with lstm_on_ptx(request.param, monkeypatch) if on_ptx else contextlib.nullcontext() as module:
        yield module
