"""AllenNLP's `ElmoTokenEmbedder`, `Highway`, `ScalarMix`, and its functions for sentence boundaries."""

import numpy as np
import pytest
import torch

import elmo_fast
from elmo_fast import ConfigurationError
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp import ElmoTokenEmbedder, batch_to_ids, remove_sentence_boundaries
from elmo_fast.testing.tolerances import SAME_MODEL
from tests.support.models import SENTENCES


def test_token_embedder_is_one_representation(files):
    ids = batch_to_ids(SENTENCES)
    embedder, elmo = ElmoTokenEmbedder(*files, dropout=0), allennlp.Elmo(*files, 1, dropout=0)
    assert embedder.get_output_dim() == 22
    expected = elmo(ids)["elmo_representations"][0]
    assert torch.equal(embedder(ids), expected)
    assert torch.equal(ElmoTokenEmbedder(*files, dropout=0)(elmo_tokens=ids), expected)
    assert set(embedder.state_dict()) == {f"_elmo.{name}" for name in elmo.state_dict()}


def test_projection(files):
    embedder = ElmoTokenEmbedder(*files, dropout=0, projection_dim=5, state="zero")
    ids, layer = batch_to_ids(SENTENCES), embedder._projection
    expected = ElmoTokenEmbedder(*files, dropout=0)(ids) @ layer.weight.t() + layer.bias
    assert embedder.get_output_dim() == 5 and torch.allclose(embedder(ids), expected, atol=1e-5)
    deep = embedder(torch.stack([ids, ids], dim=1))
    assert deep.shape == (6, 2, 11, 5) and torch.allclose(deep[:, 1], expected, atol=1e-5)
    assert {"_projection.weight", "_projection.bias"} <= set(embedder.state_dict())


@pytest.mark.parametrize("arguments", [{"requires_grad": True}, {}])
def test_gradients(files, arguments):
    embedder = ElmoTokenEmbedder(*files, **arguments)
    embedder(batch_to_ids(SENTENCES)).sum().backward()
    grads = {name: value.grad is not None for name, value in embedder.named_parameters()}
    assert all(found == ("scalar_mix" in name or bool(arguments)) for name, found in grads.items())


def test_dropout_and_mix(files):
    ids = batch_to_ids(SENTENCES[:1])
    assert 0.2 < (ElmoTokenEmbedder(*files)(ids) == 0).float().mean() < 0.8
    top = ElmoTokenEmbedder(*files, dropout=0, scalar_mix_parameters=[-9e10, -9e10, 1])
    assert not any(value.requires_grad for value in top.parameters())
    output = allennlp._ElmoBiLm(*files)(ids)
    inner = remove_sentence_boundaries(output["activations"][2], output["mask"])[0]
    assert torch.allclose(top(ids), inner, atol=SAME_MODEL)


def test_from_params(files):
    class Vocabulary:
        def get_token_to_index_vocabulary(self, namespace):
            return {"tokens": {"@@PADDING@@": 0, "@@UNKNOWN@@": 1, "The": 2}}[namespace]

    model = {"options_file": files[0], "weight_file": files[1]}
    embedder = ElmoTokenEmbedder.from_params(vocab=Vocabulary(), params={
        **model, "projection_dim": "5", "dropout": "0.0", "namespace_to_cache": "tokens"})
    assert embedder.get_output_dim() == 5 and len(embedder._elmo._elmo_lstm._word_embedding.weight) == 3
    without = ElmoTokenEmbedder.from_params(None, model)
    assert without._projection is None and without._elmo._dropout.p == 0.5
    with pytest.raises(ConfigurationError, match="projection_dim: expected an integer of at least 1"):
        ElmoTokenEmbedder(*files, projection_dim=-1)


@pytest.mark.parametrize("dtype", [torch.long, torch.float32, torch.bool])
def test_boundaries_off(dtype):
    values = torch.rand(3, 5, 7, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).to(dtype)
    inner, inner_mask = remove_sentence_boundaries(values, mask)
    assert inner_mask.dtype == torch.int64 and inner_mask.tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert torch.equal(inner, values[:, 1:4] * inner_mask[..., None])


def test_boundaries_on():
    ids = torch.tensor([[1, 2, 3], [4, 5, 0], [0, 0, 0]])
    bounded, mask = allennlp.add_sentence_boundary_token_ids(ids, (ids > 0).float(), 9, 10)
    assert bounded.tolist() == [[9, 1, 2, 3, 10], [9, 4, 5, 10, 0], [9, 10, 0, 0, 0]]
    assert torch.equal(mask, (bounded > 0).long())
    vectors = -torch.rand(2, 2, 3)  # AllenNLP's mask would lose these
    first, last = torch.ones(3), torch.full((3,), 2.0)
    bounded, mask = allennlp.add_sentence_boundary_token_ids(vectors, torch.tensor([[1, 1], [1, 0]]), first, last)
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert torch.equal(bounded[0], torch.stack([first, *vectors[0], last]))
    assert torch.equal(bounded[1], torch.stack([first, vectors[1, 0], last, torch.zeros(3)]))
    with pytest.raises(ValueError, match="tensor: expected shape"):
        allennlp.add_sentence_boundary_token_ids(torch.ones(2), torch.ones(2), 1, 1)


def test_highway():
    layers = allennlp.Highway(3, 2, activation=torch.tanh)
    assert [tuple(value.shape) for value in layers.state_dict().values()] == [(6, 3), (6,)] * 2
    assert all((layer.bias[3:] == 1).all() for layer in layers._layers)
    x = torch.randn(2, 4, 3)
    expected = x.double().numpy()
    for layer in layers._layers:
        both = expected @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        gate = 1 / (1 + np.exp(-both[..., 3:]))
        expected = gate * expected + (1 - gate) * np.tanh(both[..., :3])
    assert np.abs(layers(x).detach().numpy() - expected).max() < SAME_MODEL
    layers(x).sum().backward()
    assert all(value.grad.any() for value in layers.parameters())


def test_scalar_mix_as_allennlp_fills_it():
    mix = allennlp.ScalarMix(3, do_layer_norm="scalar_norm_reg")
    for k in range(3):
        mix.scalar_parameters[k].data[0] = 0.1 * (k + 1)
    mix.gamma.data[0] = 0.5
    tensors, mask = torch.randn(3, 3, 4, 5), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.int32)
    expected = elmo_fast.ScalarMix(3, do_layer_norm=True, initial_scalar_parameters=[0.1, 0.2, 0.3])(tensors, mask)
    assert torch.allclose(mix(tensors, mask), 0.5 * expected)
