"""`state_dict` in AllenNLP's names, order, sign and +1."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from elmo_fast import Elmo, batch_to_ids
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES, SHAPES, bilm, options, weights

CHARACTERS = "_elmo_lstm._token_embedder"
LSTM = "_elmo_lstm._elmo_lstm"


def elmo(of=None, seed=0, **arguments):
    return Elmo(None, None, 2, dropout=0, module=bilm(of or options(), seed, **arguments))


def allennlps(of, drawn):
    """AllenNLP's tensors by name, but for those of the mixes."""
    d, p, order = of.lstm.dim, of.lstm.projection_dim, [0, 2, 1, 3]  # i, j, f, o -> i, f, j, o
    theirs = {f"{CHARACTERS}._char_embedding_weights": np.concatenate([np.zeros((1, 5)), drawn["char_embed"]]),
              f"{CHARACTERS}._projection.weight": drawn["CNN_proj/W_proj"].T,
              f"{CHARACTERS}._projection.bias": drawn["CNN_proj/b_proj"]}
    for i in range(len(of.char_cnn.filters)):
        theirs[f"{CHARACTERS}.char_conv_{i}.weight"] = np.transpose(drawn[f"CNN/W_cnn_{i}"][0], (2, 1, 0))
        theirs[f"{CHARACTERS}.char_conv_{i}.bias"] = drawn[f"CNN/b_cnn_{i}"]
    for k in range(of.char_cnn.n_highway):
        for short, long in (("W", "weight"), ("b", "bias")):
            transform, carry = (drawn[f"CNN_high_{k}/{short}_{gate}"].T for gate in ("transform", "carry"))
            theirs[f"{CHARACTERS}._highways._layers.{k}.{long}"] = np.concatenate([transform, -carry])
    for direction, name in enumerate(("forward", "backward")):
        for layer in range(of.lstm.n_layers):
            cell, ours = f"{LSTM}.{name}_layer_{layer}", f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            w = np.concatenate([drawn[f"{ours}/W_0"].T[g * d : (g + 1) * d] for g in order])
            bias = drawn[f"{ours}/B"].reshape(4, d)[order].copy()
            bias[1] += 1
            theirs |= {f"{cell}.input_linearity.weight": w[:, :p], f"{cell}.state_linearity.weight": w[:, p:],
                       f"{cell}.state_linearity.bias": bias.ravel(),
                       f"{cell}.state_projection.weight": drawn[f"{ours}/W_P_0"].T}
    return theirs


@pytest.mark.parametrize("shape", ["two layers", "four layers", "no highway"])
def test_names_and_values(shape):
    of = SHAPES[shape]
    expected = allennlps(of, weights(of))
    stored = {name: value.numpy() for name, value in elmo(of).state_dict().items()}
    mixes = {f"scalar_mix_{k}.{name}" for k in (0, 1)
             for name in ("gamma", *(f"scalar_parameters.{n}" for n in range(of.lstm.n_layers + 1)))}
    assert set(stored) == expected.keys() | mixes
    for name, value in expected.items():
        np.testing.assert_array_equal(stored[name], value, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_round_trip(shape):
    of = SHAPES[shape]
    source, target, again = (elmo(of, seed) for seed in (1, 2, 3))
    with torch.no_grad():
        source.scalar_mix_1.scalar_parameters[0].fill_(0.7)
    stored = source.state_dict()
    names = list(stored)
    target.load_state_dict(stored)
    assert list(stored) == names
    ids = batch_to_ids(SENTENCES, of.char_cnn.max_characters_per_token)
    for found, expected in zip(*(module(ids)["elmo_representations"] for module in (target, source))):
        assert (found - expected).abs().max() < SAME_MODEL
    again.load_state_dict(target.state_dict())
    for (name, one), other in zip(target.named_parameters(), again.parameters()):
        assert torch.equal(one, other), name  # the forget gate's +1 rounds once, never again


def test_missing_unexpected_and_misshapen_keys_are_named():
    stored, target = elmo(seed=1).state_dict(), elmo(seed=2)
    gone = dict(stored)
    missing = f"{LSTM}.forward_layer_0.state_linearity.bias"
    del gone[missing]
    for content, message in (
            (gone, f"Missing key.*{missing}"),
            ({**stored, f"{CHARACTERS}.char_conv_9.weight": torch.zeros(1)},
             r"Unexpected key.*_token_embedder.char_conv_9.weight"),
            ({**stored, f"{CHARACTERS}.char_conv_0.bias": torch.zeros(4)},
             r"size mismatch for .*char_conv_0.bias.*\(4,\).*\(3,\)")):
        with pytest.raises(RuntimeError, match=message):
            elmo().load_state_dict(content)
    before = target._elmo_lstm._elmo_lstm.B_0_0.clone()
    assert target.load_state_dict(gone, strict=False).missing_keys == [missing]
    assert torch.equal(target._elmo_lstm._elmo_lstm.B_0_0, before)


def test_weights_that_other_libraries_add_or_change():
    """A pruned weight and what is registered have their own names, and all others AllenNLP's."""
    def changed(seed):
        model = bilm(seed=seed, requires_grad=True)
        prune.random_unstructured(model.lstm, "W_0_0_0", 0.5)
        model.lstm.register_parameter("adapter", nn.Parameter(torch.full((3,), float(seed))))
        model.lstm.register_buffer("table", torch.full((2,), float(seed)))
        return model

    one, other = changed(1), changed(2)
    stored = one.state_dict()
    assert {f"_elmo_lstm.{name}" for name in ("W_0_0_0_orig", "W_0_0_0_mask", "adapter", "table")} < stored.keys()
    assert stored.keys() - bilm().state_dict().keys() == {
        f"_elmo_lstm.{name}" for name in ("W_0_0_0_orig", "W_0_0_0_mask", "adapter", "table")}
    other.load_state_dict(stored)
    ids = batch_to_ids(SENTENCES)
    for found, expected in zip(other(ids).activations, one(ids).activations, strict=True):
        assert (found - expected).abs().max() < SAME_MODEL
    assert torch.equal(other.lstm.table, one.lstm.table) and torch.equal(other.lstm.adapter, one.lstm.adapter)
