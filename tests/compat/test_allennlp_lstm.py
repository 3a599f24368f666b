"""AllenNLP's `ElmoLstm`: the LSTM layers alone, over vectors and a mask."""

import copy

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, Options, batch_to_ids
from elmo_fast.compat.allennlp import ElmoLstm
from elmo_fast.model.options import LstmOptions
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES, bilm, files, options
from tests.support.plain import Counts, run_direction

BACKENDS = ["reference", "torch", "auto"]
LENGTHS = [4, 0, 1, 6, 2]


def lstm(input_size=3, hidden_size=5, cell_size=7, num_layers=2, **arguments):
    torch.manual_seed(0)
    return ElmoLstm(input_size, hidden_size, cell_size, num_layers, **arguments)


def batch(lengths=LENGTHS, size=3, seed=0, width=7):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    return torch.randn(len(lengths), width, size, generator=generator), mask


def plain_rows(ours, inputs, lengths, states, counts=None):
    """The same stack in NumPy float64, for rows that hold tokens: the row, outputs [layers, T, 2 P], states by
    direction and layer."""
    of = Options(LstmOptions(ours.cell_size, ours.hidden_size, ours.num_layers, True, ours.options.cell_clip,
                             ours.options.proj_clip), None)
    w = {name: getattr(ours, name).detach().double().numpy() for name in ours.datasets}
    results = []
    for row, length in filter(lambda pair: pair[1], enumerate(lengths)):
        halves, finals = [], []
        for d in (0, 1):
            x = inputs[row, :length].double().numpy()[:: -1 if d else 1]
            layers, ends = [], []
            for layer in range(ours.num_layers):
                out, end = run_direction(x, states[row][d][layer], w[f"W_0_{d}_{layer}"], w[f"B_{d}_{layer}"],
                                         w[f"W_P_0_{d}_{layer}"], of, counts or Counts())
                x = out + x if layer else out
                layers.append(x[:: -1 if d else 1])
                ends.append(end)
            halves.append(np.array(layers))
            finals.append(ends)
        results.append((row, np.concatenate(halves, axis=2), finals))
    return results


def zero_states(ours, rows):
    return [[[(np.zeros(ours.hidden_size), np.zeros(ours.cell_size))] * ours.num_layers] * 2] * rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(3, 5, 7, 2), (5, 5, 7, 3), (1, 4, 4, 1), (6, 2, 9, 2)])
def test_numbers_masks_and_states(sizes, backend):
    ours = lstm(*sizes, memory_cell_clip_value=0.2, state_projection_clip_value=0.1, backend=backend)
    states, counts = zero_states(ours, 5), Counts()
    for seed in (0, 1):
        inputs, mask = batch(size=sizes[0], seed=seed)
        found = ours(inputs, mask if seed else mask.float())
        assert found.shape == (sizes[3], 5, 7, 2 * sizes[1])
        assert not found[:, mask == 0].any()
        for row, expected, final in plain_rows(ours, inputs, LENGTHS, states, counts):
            assert np.abs(found[:, row, : LENGTHS[row]].detach().numpy() - expected).max() < SAME_MODEL
            states[row] = final
    assert counts.cell and counts.projection
    h, c = ours._states
    assert h.shape == (sizes[3], 5, 2 * sizes[1]) and c.shape == (sizes[3], 5, 2 * sizes[2]) and not h.requires_grad
    for row in range(5):
        for d, part in enumerate(zip(h[:, row].chunk(2, dim=1), c[:, row].chunk(2, dim=1))):
            for layer in range(sizes[3]):
                for one, other in zip(part, states[row][d][layer]):
                    assert np.abs(one[layer].numpy() - other).max() < SAME_MODEL


@pytest.mark.parametrize("sizes", [(3, 5, 7, 2), (4, 4, 4, 2), (2, 6, 6, 1)])
def test_the_same_without_gradients(sizes):
    with torch.no_grad():
        found, expected = (lstm(*sizes, backend=backend)(*batch(size=sizes[0])) for backend in ("auto", "reference"))
    assert torch.allclose(found, expected, atol=SAME_MODEL)


def test_batches_that_shrink_and_grow():
    ours = lstm()
    ours(*batch([2, 3, 4]))
    before = ours._states
    ours(*batch([1], seed=1))
    assert ours._states[0].shape == (2, 3, 10) and torch.equal(ours._states[0][:, 1:], before[0][:, 1:])
    assert not torch.equal(ours._states[0][:, 0], before[0][:, 0])
    ours(*batch([1, 1, 1, 0, 1], seed=2))
    assert ours._states[1].shape == (2, 5, 14) and not ours._states[1][:, 3].any()
    kept = ours._states
    ours(*batch([0, 0], seed=3))
    assert all(torch.equal(one, other) for one, other in zip(kept, ours._states))
    ours.reset_states(torch.tensor([1, 0, 0, 0, 0]))
    assert not ours._states[0][:, 0].any() and torch.equal(ours._states[0][:, 1:], kept[0][:, 1:])


def test_not_stateful():
    ours = lstm()
    ours.stateful = False
    first = ours(*batch())
    assert torch.equal(ours(*batch()), first) and ours._states is None


def test_new_weights_train():
    ours = lstm()
    assert all(value.requires_grad for value in ours.parameters())
    ours(*batch())[-1].square().sum().backward()
    assert all(value.grad.any() for value in ours.parameters())
    w = ours.W_0_0_0.detach()
    for gate in range(4):
        block = w[:3, 7 * gate : 7 * gate + 7]  # as wide as a cell: its rows are orthonormal
        assert torch.allclose(block @ block.t(), torch.eye(3), atol=1e-5)
    stored = ours.state_dict()
    bias = stored["forward_layer_0.state_linearity.bias"].view(4, 7)
    assert (bias[1] == 1).all() and not bias[[0, 2, 3]].any()
    other = lstm()
    other.load_state_dict(stored)
    assert torch.equal(other(*batch()), lstm()(*batch()))


def test_state_dict_names_where_hidden_is_as_large_as_the_cell():
    ours = lstm(5, 5, 5, 1)
    assert set(ours.state_dict()) == {f"{d}_layer_0.{part}" for d in ("forward", "backward") for part in (
        "input_linearity.weight", "state_linearity.weight", "state_linearity.bias", "state_projection.weight")}
    assert ours.state_dict()["forward_layer_0.input_linearity.weight"].shape == (20, 5)
    other = lstm(5, 5, 5, 1)
    with torch.no_grad():
        other.W_P_0_0_0.zero_()
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other.W_P_0_0_0, ours.W_P_0_0_0)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_load_weights(tmp_path, requires_grad):
    of = options()
    files(tmp_path, of)
    ours = lstm(11, 11, 37, 2, requires_grad=requires_grad, memory_cell_clip_value=3, state_projection_clip_value=3)
    ours.load_weights(tmp_path / "weights.hdf5")
    assert all(value.requires_grad == requires_grad for value in ours.parameters())
    activations, mask = bilm(of)(batch_to_ids(SENTENCES))
    found = ours(activations[0][..., :11], mask)
    for one, other in zip(found, activations[1:]):
        assert torch.allclose(one, other, atol=SAME_MODEL)
    with pytest.raises(ConfigurationError, match="dataset RNN_0.*: expected shape .*, found"):
        lstm(11, 11, 36, 2).load_weights(tmp_path / "weights.hdf5")
    with pytest.raises(ConfigurationError, match="dataset RNN_0.*Cell2.*found none"):
        lstm(11, 11, 37, 3).load_weights(tmp_path / "weights.hdf5")
    with pytest.raises(FileNotFoundError, match="weight_file"):
        ours.load_weights(tmp_path / "nothing.hdf5")


def test_recurrent_dropout():
    ours = lstm(recurrent_dropout_probability=0.5)
    ours.stateful = False
    inputs, mask = batch()
    dropped = ours(inputs, mask)
    assert not torch.equal(ours(inputs, mask), dropped)
    first = dropped[0]  # no layer below it adds to it
    for row, length in enumerate(LENGTHS):
        if length > 1:
            zero = first[row, :length] == 0
            assert (zero == zero[0]).all()  # the same values at every step
    assert 0.2 < (first[[0, 2, 3, 4], 0] == 0).float().mean() < 0.8
    assert not dropped[:, mask == 0].any()
    dropped.sum().backward()
    assert ours.W_0_1_1.grad.any()
    whole = lstm()
    whole.stateful = False
    assert torch.equal(ours.eval()(inputs, mask), whole(inputs, mask))


def test_recurrent_dropout_that_drops_next_to_nothing():
    one, other = lstm(recurrent_dropout_probability=1e-9), lstm()
    for seed in (0, 1):
        inputs, mask = batch(seed=seed)
        assert torch.allclose(one(inputs, mask), other(inputs, mask), atol=SAME_MODEL)
        for mine, theirs in zip(one._states, other._states):
            assert torch.allclose(mine, theirs, atol=SAME_MODEL)


def test_copies():
    ours = lstm()
    ours(*batch())
    assert torch.equal(copy.deepcopy(ours)(*batch()), ours(*batch()))


def test_float64():
    ours = lstm(backend="reference").double()
    inputs, mask = batch()
    found = ours(inputs.double(), mask)
    assert found.dtype == torch.float64
    states = zero_states(ours, 5)
    for row, expected, _ in plain_rows(ours, inputs, LENGTHS, states):
        assert np.abs(found[:, row, : LENGTHS[row]].detach().numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("call, named", [
    (lambda: lstm(0), "input_size: expected an integer of at least 1, got 0"),
    (lambda: lstm(num_layers=True), "num_layers: expected an integer of at least 1, got True"),
    (lambda: lstm(memory_cell_clip_value=0), "memory_cell_clip_value: expected a number above 0, or None"),
    (lambda: lstm(state_projection_clip_value=-1), "state_projection_clip_value: expected a number above 0, or None"),
    (lambda: lstm(recurrent_dropout_probability=1.0), "recurrent_dropout_probability: expected a number from 0"),
    (lambda: lstm()(*batch(size=4)), r"inputs: expected vectors of shape \[batch, tokens, 3\]"),
    (lambda: lstm()(batch()[0].long(), batch()[1]), "inputs: expected vectors"),
    (lambda: lstm()(batch()[0], torch.ones(5, 6)), r"mask: expected shape \(5, 7\), got \(5, 6\)"),
    (lambda: lstm()(batch()[0], batch()[1].flip(1)), "mask: expected every sentence's tokens before its padding"),
    (lambda: lstm(backend="fast"), "backend: expected one of"),
    (lambda: lstm(precision="low"), "precision: expected one of"),
])
def test_refuses(call, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        call()
