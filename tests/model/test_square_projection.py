"""Models with a projection as wide as the cells: the weight file decides, as in AllenNLP."""

import json

import numpy as np
import pytest
import torch

from elmo_fast import BiLm, Elmo, batch_to_ids, write_weights
from elmo_fast.train.export import export_module, export_state_dict
from elmo_fast.weights.datasets import expected_shapes, lstm_name, read_weights
from tests.support.models import SENTENCES, options, weights

OPTIONS = options({"dim": 11, "cell_clip": 0.3, "proj_clip": 0.05})
LAYERS = [lstm_name(direction, layer, "W_P_0") for direction in (0, 1) for layer in range(OPTIONS.lstm.n_layers)]


def projecting(seed=0):
    """Weights with a projection of 11 cells to 11 values in every cell."""
    generator, datasets = np.random.default_rng(seed), weights(OPTIONS, seed)
    for name in LAYERS:
        datasets[name] = generator.normal(0, 0.3, (11, 11)).astype(np.float32)
    return {name: datasets[name] for name in expected_shapes(OPTIONS, datasets)}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(OPTIONS.to_dict()))
    write_weights(folder / "weights.hdf5", projecting())
    return folder


def test_the_projection_round_trips_through_files_and_state_dicts(folder, tmp_path):
    elmo = Elmo(folder / "options.json", folder / "weights.hdf5", 1, dropout=0, state="zero")
    ids, datasets = batch_to_ids(SENTENCES), projecting()
    stored = elmo.state_dict()
    key = "_elmo_lstm._elmo_lstm.backward_layer_1.state_projection.weight"
    np.testing.assert_array_equal(stored[key].numpy(), datasets[lstm_name(1, 1, "W_P_0")].T)
    restored = Elmo(None, None, 1, dropout=0, module=BiLm(OPTIONS, projecting(5), state="zero"))
    restored.load_state_dict(stored)
    torch.testing.assert_close(*(module(ids)["elmo_representations"][0] for module in (elmo, restored)))
    torch.save(stored, tmp_path / "state.th")
    export_module(elmo, tmp_path / "module")
    export_state_dict(tmp_path / "state.th", folder / "options.json", tmp_path / "state")
    for export, limit in (("module", 0), ("state", 1e-6)):  # AllenNLP's biases have a 1 added
        actual = read_weights(tmp_path / export / "weights.hdf5", OPTIONS)
        assert actual.keys() == datasets.keys()
        for name, values in actual.items():
            np.testing.assert_allclose(values, datasets[name], rtol=0, atol=limit)
