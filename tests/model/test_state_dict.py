"""`state_dict` has AllenNLP's names, gate order, carry sign and forget-gate bias of +1."""

import numpy as np
import pytest
import torch

from elmo_fast import Elmo, batch_to_ids
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES, SHAPES, bilm, options, weights

CHARACTERS = "_elmo_lstm._token_embedder"
LSTM = "_elmo_lstm._elmo_lstm"


def elmo(sizes=None, seed=0, **arguments):
    return Elmo(None, None, 2, dropout=0, module=bilm(sizes or options(), seed, **arguments))


def allennlp_state(sizes, weights):
    """AllenNLP's tensors by name, without the mixes."""
    d, p, order = sizes.lstm.dim, sizes.lstm.projection_dim, [0, 2, 1, 3]  # i, j, f, o -> i, f, j, o
    state = {f"{CHARACTERS}._char_embedding_weights": np.concatenate([np.zeros((1, 5)), weights["char_embed"]]),
             f"{CHARACTERS}._projection.weight": weights["CNN_proj/W_proj"].T,
             f"{CHARACTERS}._projection.bias": weights["CNN_proj/b_proj"]}
    for i in range(len(sizes.char_cnn.filters)):
        state[f"{CHARACTERS}.char_conv_{i}.weight"] = np.transpose(weights[f"CNN/W_cnn_{i}"][0], (2, 1, 0))
        state[f"{CHARACTERS}.char_conv_{i}.bias"] = weights[f"CNN/b_cnn_{i}"]
    for k in range(sizes.char_cnn.n_highway):
        for short, long in (("W", "weight"), ("b", "bias")):
            transform, carry = (weights[f"CNN_high_{k}/{short}_{gate}"].T for gate in ("transform", "carry"))
            state[f"{CHARACTERS}._highways._layers.{k}.{long}"] = np.concatenate([transform, -carry])
    for direction, name in enumerate(("forward", "backward")):
        for layer in range(sizes.lstm.n_layers):
            cell, prefix = f"{LSTM}.{name}_layer_{layer}", f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            w = np.concatenate([weights[f"{prefix}/W_0"].T[g * d : (g + 1) * d] for g in order])
            bias = weights[f"{prefix}/B"].reshape(4, d)[order].copy()
            bias[1] += 1
            state |= {f"{cell}.input_linearity.weight": w[:, :p], f"{cell}.state_linearity.weight": w[:, p:],
                      f"{cell}.state_linearity.bias": bias.ravel(),
                      f"{cell}.state_projection.weight": weights[f"{prefix}/W_P_0"].T}
    return state


@pytest.mark.parametrize("shape", ["two layers", "four layers", "no highway"])
def test_names_and_values(shape):
    sizes = SHAPES[shape]
    expected = allennlp_state(sizes, weights(sizes))
    stored = {name: value.numpy() for name, value in elmo(sizes).state_dict().items()}
    mixes = {f"scalar_mix_{k}.{name}" for k in (0, 1)
             for name in ("gamma", *(f"scalar_parameters.{n}" for n in range(sizes.lstm.n_layers + 1)))}
    assert set(stored) == expected.keys() | mixes
    for name, value in expected.items():
        np.testing.assert_array_equal(stored[name], value, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_round_trip(shape):
    sizes = SHAPES[shape]
    source, target, reloaded = (elmo(sizes, seed) for seed in (1, 2, 3))
    with torch.no_grad():
        source.scalar_mix_1.scalar_parameters[0].fill_(0.7)
    stored = source.state_dict()
    names = list(stored)
    target.load_state_dict(stored)
    assert list(stored) == names
    ids = batch_to_ids(SENTENCES, sizes.char_cnn.max_characters_per_token)
    for actual, expected in zip(*(module(ids)["elmo_representations"] for module in (target, source))):
        assert (actual - expected).abs().max() < SAME_MODEL
    reloaded.load_state_dict(target.state_dict())
    for (name, value), reloaded_value in zip(target.named_parameters(), reloaded.parameters()):
        assert torch.equal(value, reloaded_value), name  # the forget gate's +1 rounds only once


def test_missing_unexpected_and_misshapen_keys_are_named():
    stored, target = elmo(seed=1).state_dict(), elmo(seed=2)
    incomplete = dict(stored)
    missing = f"{LSTM}.forward_layer_0.state_linearity.bias"
    del incomplete[missing]
    for content, message in (
            (incomplete, f"Missing key.*{missing}"),
            ({**stored, f"{CHARACTERS}.char_conv_9.weight": torch.zeros(1)},
             r"Unexpected key.*_token_embedder.char_conv_9.weight"),
            ({**stored, f"{CHARACTERS}.char_conv_0.bias": torch.zeros(4)},
             r"size mismatch for .*char_conv_0.bias.*\[4\].*\[3\]")):
        with pytest.raises(RuntimeError, match=message):
            elmo().load_state_dict(content)
    bias = target._elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.bias
    before = bias.detach().clone()
    assert target.load_state_dict(incomplete, strict=False).missing_keys == [missing]
    assert torch.equal(bias, before)
