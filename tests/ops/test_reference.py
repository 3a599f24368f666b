"""The specification against the equations written out in NumPy, one token and one step at a time."""

import numpy as np
import pytest
import torch

from elmo_fast import batch_to_ids, remove_boundaries
from tests.support import plain
from tests.support.models import SENTENCES, SHAPES, bilm, weights

BATCH = [sentence[:5] for sentence in SENTENCES]


def framed(ids, model):
    """ids int [B, T, C] -> each sentence's ids with its boundaries, int [tokens + 2, C]."""
    first, last = (each.numpy()[None] for each in model.token_source.boundary_ids())
    return [np.concatenate([first, row[row.any(1)], last]) for row in ids.numpy()]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_layer_in_float64(shape):
    options = SHAPES[shape]
    model = bilm(options, backend="reference").double()
    ids = batch_to_ids(BATCH, options.char_cnn.max_characters_per_token)
    activations, mask = model(ids)
    for row, sentence in enumerate(framed(ids, model)):
        expected, _ = plain.layers(sentence, weights(options), options)
        found = torch.stack(activations)[:, row, : len(sentence)].detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        assert mask[row].sum() == len(sentence)


def test_clips_fire_in_both_places():
    options = SHAPES["clips that fire"]
    counts = plain.Counts()
    model = bilm(options)
    for sentence in framed(batch_to_ids(BATCH), model):
        plain.layers(sentence, weights(options), options, counts=counts)
    positions = sum(len(sentence) + 2 for sentence in BATCH) * 2 * options.lstm.n_layers
    assert counts.cell > 0.05 * positions * options.lstm.dim
    assert counts.projection > 0.05 * positions * options.lstm.projection_dim


def test_states_after_two_batches():
    options = SHAPES["two layers"]
    model = bilm(options, backend="reference").double()
    ids = batch_to_ids([["Two", "sentences"], ["here"]])
    model(ids)
    model(ids.flip(0))
    first, second = (framed(each, model) for each in (ids, ids.flip(0)))
    for row in (0, 1):
        _, states = plain.layers(first[row], weights(options), options)
        _, states = plain.layers(second[row], weights(options), options, states)
        h, c = model._elmo_lstm._states
        for layer in range(options.lstm.n_layers):
            both = list(zip(states[0][layer], states[1][layer]))
            np.testing.assert_allclose(h[layer, row], np.concatenate(both[0]), rtol=1e-10)
            np.testing.assert_allclose(c[layer, row], np.concatenate(both[1]), rtol=1e-10)


def test_positions_past_the_end_are_zero():
    model = bilm()
    activations, mask = model(batch_to_ids(BATCH))
    for layer in activations:
        assert not layer[~mask].any()
        inner, inner_mask = remove_boundaries(layer, mask)
        assert inner.shape[1] == layer.shape[1] - 2
        assert not inner[~inner_mask].any()
