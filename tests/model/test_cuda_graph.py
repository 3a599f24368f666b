"""Calls inside the capture of a CUDA graph are refused before any operation runs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elmo_fast import batch_to_ids
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.ops import device
from elmo_fast.ops.char_cnn import cuda as char_cnn_cuda
from elmo_fast.ops.linear import cuda as linear_cuda
from elmo_fast.ops.projected_lstm.cuda import lstm
from tests.support.models import SENTENCES, SHAPES, bilm
from tests.support.op_cases import lstm_case

REFUSED = "torch.cuda.graph: expected a call outside of a capture, got one inside.* vectors before the capture"
IDS, X = batch_to_ids(SENTENCES), torch.zeros(1, 2)
ROWS, VECTORS, MASK = IDS[0, :1], torch.zeros(1, 2, 11), torch.ones(1, 2)
CALLS = {
    "ids": lambda model: model(IDS),
    "sentences": lambda model: model.embed_tokens(SENTENCES),
    "texts": lambda model: LoadedElmo(model).embed(["a b"]),
    "tokens": lambda model: model.encode(["a"]),
    "ids of tokens": lambda model: model.encode_ids(ROWS),
    "cached words": lambda model: model.cache_words(["a"]),
    "encoder": lambda model: model.token_source(IDS),
    "layers": lambda model: model.lstm(VECTORS, MASK),
}
CASE = lstm_case()
LSTM = CASE.given(CASE.leaves(wanted=[]))[0].arguments()
OPS = {
    "LSTM": lambda: lstm.run(*LSTM),
    "char-CNN": lambda: char_cnn_cuda.forward(IDS, X, [], [], "relu", "highest", False, False),
    "linear": lambda: linear_cuda.linear(X, [X, X], None, 1, "highest", False),
    "highway": lambda: linear_cuda.highway(X, [X] * 4, None, "highest", False),
}


class Operations(TorchDispatchMode):
    """The `names` of the operations that run in a with block."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*arguments, **(named or {}))


@pytest.fixture
def in_capture(monkeypatch):
    """A function that runs a call as if its stream were captured, and gives the names of the call's operations."""
    def run(call, *arguments):
        monkeypatch.setattr(device, "is_capturing", lambda device: True)
        with Operations() as operations, pytest.raises(RuntimeError, match=REFUSED):
            call(*arguments)
        return operations.names

    return run


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_a_model_are_refused(name, in_capture):
    assert in_capture(CALLS[name], bilm(SHAPES["two layers"], state="warm")) <= {"empty"}


@pytest.mark.parametrize("name", OPS)
def test_ops_on_a_gpu_are_refused(name, in_capture):
    assert not in_capture(OPS[name])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_inside_a_graph_of_the_user():
    model, ids = bilm(SHAPES["two layers"]).cuda(), IDS.cuda()
    model.warmup()
    with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(RuntimeError, match=REFUSED):
        model(ids)
    assert model(ids).mask.any()
