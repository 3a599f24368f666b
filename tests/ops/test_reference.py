"""The specification against the equations written out in NumPy, one token and one step at a time."""

import numpy as np
import pytest
import torch

from elmo_fast import batch_to_ids, remove_boundaries
from tests.support import plain
from tests.support.models import SENTENCES, SHAPES, bilm, weights

BATCH = [sentence[:5] for sentence in SENTENCES]


def bounded(ids, model):
    """ids int [B, T, C] -> each sentence's ids with its boundaries, int [tokens + 2, C]."""
    first, last = (each.numpy()[None] for each in model.token_source.boundary_ids())
    return [np.concatenate([first, row[row.any(1)], last]) for row in ids.numpy()]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_layer_and_state_of_batches_that_shrink_and_grow_in_float64(shape):
    options, counts = SHAPES[shape], plain.Counts()
    model, drawn = bilm(options, backend="reference").double(), weights(options)
    ids, states, steps = batch_to_ids(BATCH, options.char_cnn.max_characters_per_token), [None] * len(BATCH), 0
    for batch in (ids, ids.flip(0)[:4], ids):
        activations, mask = model(batch)
        steps += int(mask.sum()) * 2 * options.lstm.n_layers
        for row, sentence in enumerate(bounded(batch, model)):
            expected, states[row] = plain.layers(sentence, drawn, options, states[row], counts)
            found = torch.stack(activations)[:, row, : len(sentence)].detach().numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
            assert mask[row].sum() == len(sentence)
        for layer in activations:
            inner, inner_mask = remove_boundaries(layer, mask)
            assert inner.shape[1] == layer.shape[1] - 2
            assert not layer[~mask].any() and not inner[~inner_mask].any()
    for part, found in enumerate(model._elmo_lstm._states):  # h, then c
        expected = [[np.concatenate([of[direction][layer][part] for direction in (0, 1)]) for of in states]
                    for layer in range(options.lstm.n_layers)]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    if shape == "clips that fire":
        assert counts.cell > 0.05 * steps * options.lstm.dim
        assert counts.projection > 0.05 * steps * options.lstm.projection_dim
