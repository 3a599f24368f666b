"""`state_dict` in AllenNLP's names, order, sign and +1."""

import numpy as np
import pytest
import torch

from elmo_fast import Elmo, batch_to_ids
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES, SHAPES, bilm, options, weights

CHARACTERS = "_elmo_lstm._token_embedder"
LSTM = "_elmo_lstm._elmo_lstm"


def elmo(of=None, seed=0, **arguments):
    return Elmo(None, None, 2, dropout=0, module=bilm(of or options(), seed, **arguments))


def expected_keys(of):
    keys = {f"{CHARACTERS}._char_embedding_weights"}
    for i in range(len(of.char_cnn.filters)):
        keys |= {f"{CHARACTERS}.char_conv_{i}.weight", f"{CHARACTERS}.char_conv_{i}.bias"}
    for k in range(of.char_cnn.n_highway):
        keys |= {f"{CHARACTERS}._highways._layers.{k}.weight", f"{CHARACTERS}._highways._layers.{k}.bias"}
    keys |= {f"{CHARACTERS}._projection.weight", f"{CHARACTERS}._projection.bias"}
    for cell in (f"{LSTM}.{d}_layer_{layer}" for d in ("forward", "backward") for layer in range(of.lstm.n_layers)):
        keys |= {f"{cell}.{part}" for part in ("input_linearity.weight", "state_linearity.weight",
                                               "state_linearity.bias", "state_projection.weight")}
    mixes = [f"scalar_mix_{k}.{name}" for k in (0, 1)
             for name in ("gamma", *(f"scalar_parameters.{n}" for n in range(of.lstm.n_layers + 1)))]
    return keys | set(mixes)


@pytest.mark.parametrize("shape", ["two layers", "four layers", "no highway"])
def test_keys(shape):
    assert set(elmo(SHAPES[shape]).state_dict()) == expected_keys(SHAPES[shape])


def test_values():
    of, drawn = options(), weights(options())
    stored = {name: value.numpy() for name, value in elmo().state_dict().items()}
    table = stored[f"{CHARACTERS}._char_embedding_weights"]
    assert table.shape == (262, 5) and not table[0].any()
    np.testing.assert_array_equal(table[1:], drawn["char_embed"])
    np.testing.assert_array_equal(stored[f"{CHARACTERS}.char_conv_2.weight"],
                                  np.transpose(drawn["CNN/W_cnn_2"][0], (2, 1, 0)))
    both = np.concatenate([drawn["CNN_high_1/W_transform"].T, -drawn["CNN_high_1/W_carry"].T])
    np.testing.assert_array_equal(stored[f"{CHARACTERS}._highways._layers.1.weight"], both)
    both = np.concatenate([drawn["CNN_high_1/b_transform"], -drawn["CNN_high_1/b_carry"]])
    np.testing.assert_array_equal(stored[f"{CHARACTERS}._highways._layers.1.bias"], both)
    np.testing.assert_array_equal(stored[f"{CHARACTERS}._projection.weight"], drawn["CNN_proj/W_proj"].T)
    d, p = of.lstm.dim, of.lstm.projection_dim
    cell = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"
    order = [0, 2, 1, 3]  # i, j, f, o -> i, f, j, o
    w = np.concatenate([drawn[f"{cell}/W_0"].T[g * d : (g + 1) * d] for g in order])
    np.testing.assert_array_equal(stored[f"{LSTM}.backward_layer_1.input_linearity.weight"], w[:, :p])
    np.testing.assert_array_equal(stored[f"{LSTM}.backward_layer_1.state_linearity.weight"], w[:, p:])
    bias = drawn[f"{cell}/B"].reshape(4, d)[order].copy()
    bias[1] += 1
    np.testing.assert_array_equal(stored[f"{LSTM}.backward_layer_1.state_linearity.bias"], bias.ravel())
    np.testing.assert_array_equal(stored[f"{LSTM}.backward_layer_1.state_projection.weight"], drawn[f"{cell}/W_P_0"].T)


@pytest.mark.parametrize("shape", SHAPES)
def test_round_trip(shape):
    of = SHAPES[shape]
    source, target = elmo(of, seed=1), elmo(of, seed=2)
    with torch.no_grad():
        source.scalar_mix_1.scalar_parameters[0].fill_(0.7)
    target.load_state_dict(source.state_dict())
    ids = batch_to_ids(SENTENCES, of.char_cnn.max_characters_per_token)
    one, other = (each(ids)["elmo_representations"] for each in (source, target))
    for found, expected in zip(other, one):
        assert (found - expected).abs().max() < SAME_MODEL
    again = elmo(of, seed=3)
    again.load_state_dict(target.state_dict())
    for (name, one), other in zip(target.named_parameters(), again.parameters()):
        assert torch.equal(one, other), name  # the forget gate's +1 rounds once, never again


def test_missing_unexpected_and_misshapen_keys_are_named():
    stored = elmo().state_dict()
    gone = dict(stored)
    del gone[f"{LSTM}.forward_layer_0.input_linearity.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*forward_layer_0.input_linearity.weight"):
        elmo().load_state_dict(gone)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*_token_embedder.char_conv_9.weight"):
        elmo().load_state_dict({**stored, f"{CHARACTERS}.char_conv_9.weight": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"size mismatch for .*char_conv_0.bias.*\(4,\).*\(3,\)"):
        elmo().load_state_dict({**stored, f"{CHARACTERS}.char_conv_0.bias": torch.zeros(4)})


def test_not_strict_reports_and_keeps():
    target = elmo(seed=2)
    stored = elmo(seed=1).state_dict()
    del stored[f"{LSTM}.forward_layer_0.state_linearity.bias"]
    before = target._elmo_lstm._elmo_lstm.B_0_0.clone()
    result = target.load_state_dict(stored, strict=False)
    assert result.missing_keys == [f"{LSTM}.forward_layer_0.state_linearity.bias"]
    assert torch.equal(target._elmo_lstm._elmo_lstm.B_0_0, before)


def test_source_is_left_alone():
    stored = elmo().state_dict()
    names = list(stored)
    elmo(seed=2).load_state_dict(stored)
    assert list(stored) == names


def test_gradients_flow_through_kept_variables():
    model = bilm(requires_grad=True)
    kept = model.state_dict(keep_vars=True)
    sum(value.sum() for value in kept.values()).backward()
    assert all(value.grad is not None for value in model.parameters())
