"""Calls inside the capture of a CUDA graph are refused."""

import pytest
import torch

from elmo_fast import batch_to_ids
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.nn.lookup import TokenEncoder, WordCache
from elmo_fast.ops import device
from tests.support.models import SENTENCES, SHAPES, bilm

REFUSED = "torch.cuda.graph: expected a call outside of a capture, got one inside.* vectors before the capture"
IDS = batch_to_ids(SENTENCES)
ROWS, VECTORS, MASK = IDS[0, :1], torch.zeros(1, 2, 11), torch.ones(1, 2)
CALLS = {
    "ids": lambda model: model(IDS),
    "sentences": lambda model: model.embed_tokens(SENTENCES),
    "texts": lambda model: LoadedElmo(model).embed(["a b"]),
    "tokens": lambda model: model.encode(["a"]),
    "ids of tokens": lambda model: TokenEncoder.of(model).batch(ROWS[None], "present"),
    "cached words": lambda model: WordCache.of(TokenEncoder.of(model), ["a"]),
    "encoder": lambda model: model.token_source(IDS),
    "layers": lambda model: model._elmo_lstm(VECTORS, MASK),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_a_model_are_refused(name, monkeypatch):
    model = bilm(SHAPES["two layers"], state="warm")
    monkeypatch.setattr(device, "is_capturing", lambda device: True)
    with pytest.raises(RuntimeError, match=REFUSED):
        CALLS[name](model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_a_call_inside_a_users_graph_is_refused():
    model, ids = bilm(SHAPES["two layers"]).cuda(), IDS.cuda()
    model.warmup()
    with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(RuntimeError, match=REFUSED):
        model(ids)
    assert model(ids).mask.any()
