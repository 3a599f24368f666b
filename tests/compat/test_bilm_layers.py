"""bilm-tf's `weight_layers`: the values of the mixture, and the weights that a name selects."""

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError
from elmo_fast.compat.bilm import Batcher, BidirectionalLanguageModel, LayerWeights, Variables, weight_layers
from elmo_fast.testing import SAME_MODEL
from tests.support.files import paths, write_model

W, GAMMA = [0.1, -0.4, 0.9], 1.3
MASK = np.array([[True] * 4, [True, True, False, False], [True, False, False, False]])


def arrays(layers=3, **changes):
    """A biLM's results as arrays, with values past the ends of sentences that must not count."""
    values = np.random.default_rng(0).normal(0.3, 2, (3, layers, 4, 6)).astype(np.float32)
    return {"lm_embeddings": values, "mask": MASK, **changes}


def expected(ops, w, gamma, use_top_only=False, do_layer_norm=False, l2_coef=None):
    """The mixture in float64, by the formulas of the paper and of bilm-tf's documentation."""
    layers = ops["lm_embeddings"].astype(np.float64)
    if use_top_only:
        return gamma * layers[:, -1]
    shares = np.exp(np.array(w) + 1 / len(w))
    total = 0
    for share, layer in zip(shares / shares.sum(), layers.swapaxes(0, 1)):
        if do_layer_norm:
            real = layer[ops["mask"]]  # the unmasked elements of all sentences
            layer = (layer - real.mean()) / np.sqrt(real.var() + 1e-12)
        total = total + share * layer
    return gamma * total


def set_weights(weights, w=W, gamma=GAMMA):
    with torch.no_grad():
        if weights.W is not None:
            weights.W.copy_(torch.tensor(w))
        weights.gamma.fill_(gamma)


@pytest.fixture
def model(folder):
    return BidirectionalLanguageModel(*paths(folder), state="zero")


@pytest.fixture
def ids(vocab):
    return Batcher(vocab, 50).batch_sentences([["a", "b", "c", "d"], ["a", "e"], ["f"]])


@pytest.mark.parametrize("layers, settings", [
    (3, {}), (3, {"l2_coef": 0.5}), (3, {"do_layer_norm": True, "l2_coef": 0}),
    (3, {"use_top_only": True, "l2_coef": 1.0}), (3, {"use_top_only": True, "do_layer_norm": True}),
    *((layers, {"do_layer_norm": True, "l2_coef": 1}) for layers in (1, 2, 5))])
def test_the_numbers(layers, settings):
    ops = arrays(layers)
    weights = weight_layers("elmo", ops, **settings).weights
    for w, gamma in (([0] * layers, 1), (W if layers == 3 else list(np.linspace(-1, 1, layers)), GAMMA)):
        if gamma == GAMMA:
            set_weights(weights, w, gamma)
        mixture = weights(ops)
        assert set(mixture) == {"weighted_op", "regularization_op"}
        assert mixture["weighted_op"].shape == (3, 4, 6) and mixture["weighted_op"].dtype == torch.float32
        assert np.abs(mixture["weighted_op"].detach().numpy() - expected(ops, w, gamma, **settings)).max() < 1e-5
        value = 0 if "use_top_only" in settings else settings.get("l2_coef", 0) * np.square(w).sum()
        assert mixture["regularization_op"].shape == () and abs(mixture["regularization_op"].item() - value) < 1e-6


def test_gradients_reach_the_layers():
    layers = torch.from_numpy(arrays()["lm_embeddings"]).requires_grad_()
    weight_layers("elmo", arrays(lm_embeddings=layers), do_layer_norm=True)["weighted_op"].sin().sum().backward()
    assert all(layer.any() for layer in layers.grad.unbind(1))


def test_gradients_reach_the_weights_of_the_name_alone(model, ids):
    elmo, output = (weight_layers(name, model(ids), l2_coef=0.1) for name in ("input", "output"))
    set_weights(elmo.weights)
    mixture = weight_layers("input", model(ids), l2_coef=0.1, reuse=True)
    (mixture["weighted_op"].square().sum() + mixture["regularization_op"]).backward()
    assert all(value.grad.any() for value in elmo.parameters())
    assert all(value.grad is None for value in output.parameters())


def test_the_trainable_weights_of_a_model(model, ids):
    """bilm-tf's tf.trainable_variables() and its collection of regularization losses."""
    for name, settings in (("0", {"l2_coef": 1.0}), ("1", {"l2_coef": 0.5}), ("2", {"use_top_only": True})):
        weight_layers(name, model(ids), **settings)
    trainable = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trainable == ["variables.0_ELMo.W", "variables.0_ELMo.gamma", "variables.1_ELMo.W", "variables.1_ELMo.gamma",
                         "variables.2_ELMo.gamma"]
    assert set(trainable) == {f"variables.{name}" for name in model.variables.state_dict()}
    set_weights(model.variables["0"])
    set_weights(model.variables["1"])
    assert np.allclose([loss.item() for loss in model.variables.regularization_losses()], [0.98, 0.49])


def test_names(tmp_path, model, ids):
    """A name is new or shared on request, and belongs to its model or to the caller's `Variables`."""
    context = weight_layers("input", model(ids), l2_coef=0.5)
    question = weight_layers("input", model(ids[:1]), l2_coef=0.5, reuse=True)
    assert question.weights is context.weights is model.variables["input"]
    assert weight_layers("input", model(ids), reuse=True).weights is context.weights
    parameters = [context.weights.W, context.weights.gamma]
    assert list(model.variables.parameters()) == list(context.parameters()) == parameters
    weight_layers("put", model(ids), l2_coef=0.5)  # an error in bilm-tf, which looks for parts of names
    assert "put" in model.variables and "pu" not in model.variables
    with pytest.raises(KeyError):
        model.variables["pu"]
    other_model = BidirectionalLanguageModel(*paths(write_model(tmp_path / "other", seed=1)))
    assert weight_layers("input", other_model(ids)).weights is not context.weights
    mine = Variables()
    weight_layers("new", model(ids), variables=mine)
    weight_layers("new", arrays(), variables=mine, reuse=True)
    assert "new" in mine and "new" not in model.variables
    assert [name for name, _ in mine.named_parameters()] == ["new_ELMo.W", "new_ELMo.gamma"]
    for name, ops, arguments, why in [
        ("input", model(ids), {"l2_coef": 0.5}, "expected a new name, got 'input', which is taken; reuse=True"),
        ("new", arrays(), {"variables": mine}, "expected a new name, got 'new', which is taken"),
        ("no", model(ids), {"reuse": True}, "expected the name of weights that were made before, got 'no'"),
        ("input", arrays(), {"reuse": True}, "expected the Variables with the weights to reuse"),
        *(("input", model(ids), {"reuse": True, **settings}, "expected the settings that 'input' was made with")
          for settings in ({"l2_coef": 0.1}, {"use_top_only": True}, {"do_layer_norm": True})),
    ]:
        with pytest.raises(ConfigurationError if "settings" in why else ValueError, match=f"^(name|variables): {why}"):
            weight_layers(name, ops, **arguments)


@pytest.mark.parametrize("name, ops, l2_coef, message", [
    ("a", arrays(lm_embeddings=np.zeros((3, 4, 6), np.float32)), 0, "bilm_ops: expected lm_embeddings of shape"),
    ("a", arrays(lm_embeddings=np.zeros((3, 3, 4, 6), np.int64)), 0, "bilm_ops: .* of shape .* got torch.int64"),
    ("a", arrays(mask=MASK[:, :3]), 0, r"bilm_ops: expected a mask of shape \(3, 4\), got \(3, 3\)"),
    ("a", {"lm_embeddings": 0}, 0, "bilm_ops: expected lm_embeddings and mask, missing mask"),
    *((name, arrays(), 0, "name: expected a string without dots") for name in ("", "a.b", None)),
    *(("a", arrays(), value, "l2_coef: expected a number or None") for value in ("0.5", True, float("nan"))),
])
def test_refuses(name, ops, l2_coef, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        weight_layers(name, ops, l2_coef)


def test_weights_by_themselves(model, ids):
    ops = model(ids)
    assert torch.allclose(LayerWeights(3, 0.1)(ops)["weighted_op"], ops["lm_embeddings"].mean(1), atol=SAME_MODEL)
    with pytest.raises(ConfigurationError, match="bilm_ops: expected lm_embeddings of 3 layers, got 2"):
        LayerWeights(3)(arrays(2))
    for layers in (0, True, 2.0):
        with pytest.raises(ValueError, match="n_layers: expected an integer of at least 1"):
            LayerWeights(layers)
