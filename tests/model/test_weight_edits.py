"""After any edit of the weights, the next call gives the results of a new model with these weights."""

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, ElmoEmbedder, batch_to_ids, load, write_weights
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.testing import SAME_MODEL
from tests.support.engines import needs_native
from tests.support.files import paths, write_model
from tests.support.grid import mostly_long
from tests.support.models import bilm, options, weights

pytestmark = needs_native
# large enough that every kind of matrix is sampled
SIZES = options({"dim": 256, "projection_dim": 64},
                {"embedding": {"dim": 16}, "filters": [[1, 32], [3, 112], [5, 128]], "n_highway": 1})
SENTENCES = [["The", "play", "was", "long", "."], ["Hi"]]
IDS = batch_to_ids(SENTENCES)


def model(state="warm", **arguments):
    return bilm(SIZES, state=state, backend="native", **arguments)


@torch.no_grad()
def layers(network):
    return torch.stack(network(IDS).activations)


def assert_current(network):
    """Check that the model gives the bits of a new model with its weights."""
    fresh = BiLm(SIZES, network.weights(), state=network.state, backend="native").to(network._elmo_lstm.like.dtype)
    assert torch.equal(layers(network), layers(fresh))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("model"), SIZES.to_dict())
    write_weights(folder / "weights.hdf5", weights(SIZES))
    return paths(folder)


# ---- ways of editing -------------------------------------------------------------------------------------------------


def _swap(p):
    halved = p.data.clone() * 0.5
    p.data, halved = halved, p.data


def _through(array):
    array *= 0.5


WAYS = {
    "in place": lambda p: p.data.mul_(0.5),
    "counted": lambda p: p.detach().mul_(0.5),
    "NumPy view of data": lambda p: _through(p.data.numpy()),
    "NumPy view of detach": lambda p: _through(p.detach().numpy()),
    "foreach": lambda p: torch._foreach_mul_([p.data], 0.5),
    "data replaced": lambda p: setattr(p, "data", p.data * 0.5),
    "data swapped": _swap,
    "set": lambda p: p.data.set_(p.data * 0.5) is p.set_(p.detach() * 0.5),
    "pruned": lambda p: p.data.mul_(torch.rand(p.shape) < 0.9),
    "random baseline": lambda p: torch.nn.init.normal_(p.data, 0, 0.1),
    "average": lambda p: p.data.copy_(0.999 * p.data + 0.001),
    "flipped": lambda p: setattr(p, "data", p.data.flip(0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["zero", "warm"])
def test_a_way_of_editing(way, state):
    edited = model(state)
    before = layers(edited)
    with torch.no_grad():
        for p in edited.parameters():
            WAYS[way](p)
    assert not torch.equal(layers(edited), before)
    assert_current(edited)
    layers(edited)
    edited.load_state_dict(model(state).state_dict())
    torch.testing.assert_close(layers(edited), before, atol=SAME_MODEL, rtol=0)


@pytest.mark.parametrize("name", [name for name in bilm(SIZES).state_dict() if "_1." in name or "embedder" in name])
def test_a_kind_of_weight(name):
    for edited in (model(), model("zero"), model("zero").half()):
        layers(edited)
        edited.get_parameter(name).data.mul_(1.5).add_(0.125)
        assert_current(edited)


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "foreach", "fused"])
@pytest.mark.parametrize("optimizer", mostly_long([torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad]))
def test_torchs_optimizers_between_evaluations(kind, optimizer):
    trained = model(requires_grad=True)
    variant = {} if kind == "plain" else {kind: True}
    steps = optimizer(trained.parameters(), lr=0.05, **variant)
    for _ in range(2):
        steps.zero_grad()
        trained(IDS).activations[-1].sum().backward()
        before = layers(trained)  # after the gradients
        steps.step()
        assert not torch.equal(layers(trained), before)
        assert_current(trained)


@pytest.mark.parametrize("seen_by", ["backward", "evaluation"])
def test_an_edit_of_one_number_is_detected(seen_by):
    edited = model(requires_grad=seen_by == "backward")
    layers(edited)
    for number in (1, 2, 7_777):
        if seen_by == "backward":
            edited(IDS).activations[-1].sum().backward()
            layers(edited)
            edited.zero_grad(set_to_none=True)
            edited(IDS).activations[-1].sum().backward()
        edited._elmo_lstm.forward_layer_1.state_linearity.weight.data.view(-1)[number] += 0.25
        if seen_by == "evaluation":
            edited.train()
            edited.eval()
        assert_current(edited)


# ---- APIs ------------------------------------------------------------------------------------------------------------


def test_embedders(files):
    loaded, embedder = LoadedElmo(load(files[0].parent).bilm), ElmoEmbedder(*files, state="zero")
    for network, call in ((loaded.bilm, lambda: [*loaded.embed(SENTENCES), loaded.encode_words(["play"])]),
                          (embedder.elmo_bilm, lambda: [*embedder.embed_batch(SENTENCES),
                                                        *embedder.embed_sentences(SENTENCES)])):
        before = call()
        for p in network.parameters():
            p.data.mul_(0.75)
        actual = call()
        fresh = BiLm(SIZES, network.weights(), state=network.state)
        fresh_loaded, fresh_embedder = LoadedElmo(fresh), ElmoEmbedder.from_bilm(fresh)
        expected = ([*fresh_loaded.embed(SENTENCES), fresh_loaded.encode_words(["play"])] if network is loaded.bilm else
                    [*fresh_embedder.embed_batch(SENTENCES), *fresh_embedder.embed_sentences(SENTENCES)])
        assert all(map(np.array_equal, actual, expected)) and not any(map(np.array_equal, actual, before))
