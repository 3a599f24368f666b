import copy

import pytest
import torch

from elmo_fast import batch_to_ids
from elmo_fast.ops.backend import why_not
from elmo_fast.ops.cpu import linear, projected_lstm
from elmo_fast.ops.weight_cache import version_key
from tests.support.models import SENTENCES, bilm


@pytest.mark.parametrize("edit, counts", [
    (lambda w: w.add_(1), True), (lambda w: w[1:].zero_(), True), (lambda w: w.sum(), False),
    (lambda w: w.view(-1), False)])
def test_edits_in_place_change_the_key(edit, counts):
    w = torch.ones(4, 3)
    before = version_key(w)
    edit(w)
    assert (version_key(w) != before) == counts


def test_an_inference_tensor_is_never_trusted():
    with torch.inference_mode():
        w = torch.ones(3)
    assert version_key(w) != version_key(w)


@pytest.mark.skipif(why_not("linear", "native", [torch.ones(1)]) is not None, reason="needs the engine")
def test_a_model_made_in_inference_mode_packs_its_weights_once(monkeypatch):
    with torch.inference_mode():
        model, ids = bilm(backend="native", state="zero"), batch_to_ids(SENTENCES)
        first = torch.stack(model(ids).activations)
        for module in (linear, projected_lstm):
            monkeypatch.setattr(module, "aligned_bytes", None)  # allocates packed weights
        assert torch.equal(torch.stack(model(ids).activations), first)
    with torch.no_grad():
        model.get_parameter("_elmo_lstm.W_0_0_0").mul_(2)
    with pytest.raises(TypeError, match="NoneType"):
        model(ids)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("state", ["zero", "warm"])
def test_a_fused_optimizers_updates_are_seen(optimizer, state):
    """Fused and plain updates are the same, and so must be what the model gives after each."""
    models = [bilm(requires_grad=True, state=state), None]
    models[1] = copy.deepcopy(models[0])
    ids, found = batch_to_ids(SENTENCES), []
    for model, fused in zip(models, (True, False)):
        steps = optimizer(model.parameters(), lr=0.05, fused=fused)
        for _ in range(3):
            steps.zero_grad()
            model(ids).activations[-1].square().sum().backward()
            steps.step()
        with torch.no_grad():
            found.append(torch.stack(model(ids).activations))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=2e-5)
