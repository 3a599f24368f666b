"""AllenNLP's `ElmoLstm`, `ElmoTokenEmbedder`, `Highway`, and its functions for sentence boundaries."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from elmo_fast import ConfigurationError, Options
from elmo_fast.compat import allennlp
from elmo_fast.compat.allennlp import ElmoLstm, ElmoTokenEmbedder, batch_to_ids, remove_sentence_boundaries
from elmo_fast.compat.allennlp.modules.lstm_cell_with_projection import LstmCellWithProjection
from elmo_fast.testing import SAME_MODEL
from elmo_fast.weights.datasets import LSTM_DATASETS, lstm_name
from elmo_fast.weights.options import LstmOptions
from tests.support.grid import grid
from tests.support.models import SENTENCES, bilm
from tests.support.plain_elmo import PlainElmo

LENGTHS = [4, 0, 1, 6, 2]


def lstm(input_size=3, hidden_size=5, cell_size=7, num_layers=2, stateful=True, **arguments):
    torch.manual_seed(0)
    ours = ElmoLstm(input_size, hidden_size, cell_size, num_layers, **arguments)
    ours.stateful = stateful
    return ours


def batch(lengths=LENGTHS, size=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    return torch.randn(len(lengths), 7, size, generator=generator), mask


@pytest.mark.parametrize("sizes, way, trains", grid(
    [(3, 5, 7, 2), (5, 5, 7, 3), (1, 4, 4, 1), (6, 2, 9, 2), (4, 4, 4, 2), (3, 9, 7, 2)],
    ["reference", "torch", "auto", "float64", "next to no dropout"], [True, False]))
def test_numbers_masks_and_states_of_batches_that_shrink_and_grow(sizes, way, trains):
    clips = {"memory_cell_clip_value": 0.2, "state_projection_clip_value": 0.05}
    backend = way if way in ("torch", "auto") else "reference"
    ours = lstm(*sizes, **clips, backend=backend, recurrent_dropout_probability=1e-9 if "dropout" in way else 0)
    dtype, limit = (torch.float64, 1e-12) if way == "float64" else (torch.float32, SAME_MODEL)
    exact = PlainElmo(Options(ours.options, None), {name: value.numpy() for name, value in ours.weights().items()})
    states = [exact.initial] * 7
    for seed, lengths in enumerate([LENGTHS, [3, 2, 0], [0, 0], [1, 1, 0, 0, 2, 7, 0]]):
        inputs, mask = batch(lengths, sizes[0], seed)
        with torch.set_grad_enabled(trains):
            actual = ours.to(dtype)(inputs.to(dtype), mask if seed else mask.float())
        assert actual.shape == (sizes[3], len(lengths), 7, 2 * sizes[1]) and actual.dtype == dtype
        assert not actual[:, mask == 0].any()
        for row, length in filter(lambda pair: pair[1], enumerate(lengths)):
            expected, states[row] = exact.run(inputs[row, :length].double(), states[row])
            assert (actual[:, row, :length].detach() - expected).abs().max() < limit
    assert exact.counts.cell and exact.counts.projection
    h, c = ours._states
    assert h.shape == (sizes[3], 7, 2 * sizes[1]) and c.shape == (sizes[3], 7, 2 * sizes[2]) and not h.requires_grad
    for row, carried in enumerate(states):
        for d, halves in enumerate(zip(h[:, row].chunk(2, dim=1), c[:, row].chunk(2, dim=1))):
            for values, expected in zip(halves, zip(*carried[d])):
                assert (values - torch.stack(expected)).abs().max() < limit


def test_new_weights_train():
    ours = lstm()
    assert all(value.requires_grad for value in ours.parameters())
    ours(*batch())[-1].square().sum().backward()
    assert all(value.grad.any() for value in ours.parameters())
    for block in ours.forward_layer_0.input_linearity.weight.detach().chunk(4):  # [7, 3], with orthonormal columns
        assert torch.allclose(block.t() @ block, torch.eye(3), atol=1e-5)
    bias = ours.state_dict()["forward_layer_0.state_linearity.bias"].view(4, 7)
    assert (bias[1] == 1).all() and not bias[[0, 2, 3]].any()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_load_weights_and_carry_states(files, requires_grad):
    ours = lstm(11, 11, 37, 2, requires_grad=requires_grad, memory_cell_clip_value=3, state_projection_clip_value=3)
    ours.load_weights(files[1])
    assert all(value.requires_grad == requires_grad for value in ours.parameters())
    activations, mask = bilm()(batch_to_ids(SENTENCES))
    vectors, expected = activations[0][..., :11], torch.stack(activations[1:])
    assert torch.allclose(ours(vectors, mask), expected, atol=SAME_MODEL)
    assert (ours(vectors, mask) - expected).abs().max() > 1e-3 and ours._states is not None
    ours.reset_states()
    inner = allennlp.Elmo(*files, 1)._elmo_lstm._elmo_lstm
    inner.stateful = False
    for stack in (ours, inner, inner, allennlp._ElmoBiLm(*files, state="zero")._elmo_lstm):
        assert torch.allclose(stack(vectors, mask.long()), expected, atol=SAME_MODEL)


def test_recurrent_dropout():
    ours = lstm(stateful=False, recurrent_dropout_probability=0.5)
    inputs, mask = batch()
    dropped = ours(inputs, mask)
    assert not torch.equal(ours(inputs, mask), dropped)
    first = dropped[0]  # no lower layer adds to the first
    for row, length in enumerate(LENGTHS):
        zero = first[row, :length] == 0
        assert (zero == zero[:1]).all()  # the same values at every step
    assert 0.2 < (first[[0, 2, 3, 4], 0] == 0).float().mean() < 0.8
    assert not dropped[:, mask == 0].any()
    dropped.sum().backward()
    assert ours.backward_layer_1.state_linearity.weight.grad.any()
    assert torch.equal(ours.eval()(inputs, mask), lstm(stateful=False)(inputs, mask))


def cell(go_forward=True, **arguments):
    torch.manual_seed(0)
    return LstmCellWithProjection(3, 5, 7, go_forward, **arguments)


@pytest.mark.parametrize("go_forward", [True, False])
@pytest.mark.parametrize("starts", [True, False])
def test_a_cell_by_itself(go_forward, starts):
    ours = cell(go_forward, memory_cell_clip_value=0.2, state_projection_clip_value=0.05).double()
    inputs, lengths = torch.randn(4, 6, 3, dtype=torch.float64), [6, 4, 1, 3]
    initial = tuple(torch.rand(1, 4, size, dtype=torch.float64) for size in (5, 7)) if starts else None
    outputs, (h, c) = ours(inputs, lengths, initial)
    of = LstmOptions(7, 5, 1, use_skip_connections=False, cell_clip=0.2, proj_clip=0.05)
    exact = PlainElmo(Options(of, None), {lstm_name(0, 0, name): value.detach().numpy()
                                          for name, value in zip(LSTM_DATASETS, ours.weights())})
    for row, length in enumerate(lengths):
        state = [tuple(value[0, row] for value in initial)] if starts else exact.initial[0]
        backward = () if go_forward else (0,)
        (expected,), (final,) = exact.run_direction(inputs[row, :length].flip(backward), state, 0)
        assert torch.allclose(outputs[row, :length].detach().flip(backward), expected, atol=1e-12)
        assert not outputs[row, length:].any()
        for actual, truth in zip((h, c), final):
            assert torch.allclose(actual[0, row].detach(), truth, atol=1e-12)
    assert exact.counts.cell and exact.counts.projection
    clone = cell(go_forward).double()
    torch.nn.init.zeros_(clone.input_linearity.weight)
    clone.load_state_dict(ours.state_dict())
    assert all(map(torch.equal, clone.parameters(), ours.parameters()))
    assert list(ours.state_dict()) == ["input_linearity.weight", "state_linearity.weight", "state_linearity.bias",
                                       "state_projection.weight"]
    with pytest.raises(ValueError, match=r"inputs: expected 3 sentences of vectors of 3 values, got shape \(4, 6, 3\)"):
        ours(inputs, lengths[:3])


def test_layers_of_a_stack_share_its_weights():
    ours = lstm(memory_cell_clip_value=0.2, state_projection_clip_value=0.1, stateful=False)
    inputs, mask = batch([7, 3, 1])
    expected, x = ours(inputs, mask), [inputs, inputs]
    for layer, cells in enumerate(zip(ours.forward_layers, ours.backward_layers)):
        runs = [part(values, [7, 3, 1])[0] for part, values in zip(cells, x)]
        x = [out + below if layer else out for out, below in zip(runs, x)]
        assert torch.allclose(torch.cat(x, dim=2), expected[layer], atol=SAME_MODEL)
    assert ours.forward_layers[1] is ours.forward_layer_1 and not ours.backward_layers[0].go_forward
    assert {id(value) for part in (*ours.forward_layers, *ours.backward_layers) for value in part.parameters()} == set(
        map(id, ours.parameters()))
    assert not ours.eval().forward_layers[0].training


@pytest.mark.parametrize("call, message", [
    (lambda _: cell(memory_cell_clip_value=0), "memory_cell_clip_value: expected a number above 0, or None"),
    (lambda _: LstmCellWithProjection(3, 0, 7), "hidden_size: expected an integer of at least 1, got 0"),
    (lambda _: lstm(0), "input_size: expected an integer of at least 1, got 0"),
    (lambda _: lstm(num_layers=True), "num_layers: expected an integer of at least 1, got True"),
    (lambda _: lstm(memory_cell_clip_value=0), "memory_cell_clip_value: expected a number above 0, or None"),
    (lambda _: lstm(state_projection_clip_value=-1), "state_projection_clip_value: expected a number above 0, or None"),
    (lambda _: lstm(recurrent_dropout_probability=1.0), "recurrent_dropout_probability: expected a number from 0"),
    (lambda _: lstm(backend="fast"), "backend: expected one of"),
    (lambda _: lstm(precision="lowest"), "precision: expected one of"),
    (lambda _: lstm()(*batch(size=4)), r"inputs: expected vectors of shape \[batch, tokens, 3\]"),
    (lambda _: lstm()(batch()[0].long(), batch()[1]), "inputs: expected vectors"),
    (lambda _: lstm()(batch()[0], torch.ones(5, 6)), r"mask: expected shape \(5, 7\), got \(5, 6\)"),
    (lambda _: lstm()(batch()[0], batch()[1].flip(1)), "mask: expected every sentence's tokens before its padding"),
    (lambda file: lstm(11, 11, 36, 2).load_weights(file), "weight_file .*dataset RNN_0.*: expected shape .*, found"),
])
def test_refuses(files, call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call(files[1])


def test_token_embedder_is_one_representation_projected_if_asked(files):
    ids = batch_to_ids(SENTENCES)
    embedder, elmo = ElmoTokenEmbedder(*files, dropout=0), allennlp.Elmo(*files, 1, dropout=0)
    parts = elmo, elmo._elmo_lstm, elmo._elmo_lstm._token_embedder, embedder
    assert [part.get_output_dim() for part in parts] == [22, 22, 11, 22]
    expected = elmo(ids)["elmo_representations"][0]
    assert torch.equal(embedder(ids), expected)
    assert torch.equal(ElmoTokenEmbedder(*files, dropout=0)(elmo_tokens=ids), expected)
    assert set(embedder.state_dict()) == {f"_elmo.{name}" for name in elmo.state_dict()}
    embedder = ElmoTokenEmbedder(*files, dropout=0, projection_dim=5, state="zero")
    projected = expected @ embedder._projection.weight.t() + embedder._projection.bias
    assert embedder.get_output_dim() == 5 and torch.allclose(embedder(ids), projected, atol=1e-5)
    deep = embedder(torch.stack([ids, ids], dim=1))
    assert deep.shape == (6, 2, 11, 5) and torch.allclose(deep[:, 1], projected, atol=1e-5)
    assert {"_projection.weight", "_projection.bias"} <= set(embedder.state_dict())


def test_from_params(files):
    namespaces = {"tokens": {"@@PADDING@@": 0, "@@UNKNOWN@@": 1, "The": 2}}
    vocabulary = SimpleNamespace(get_token_to_index_vocabulary=namespaces.get)
    model = {"options_file": files[0], "weight_file": files[1]}
    embedder = ElmoTokenEmbedder.from_params(vocab=vocabulary, params={
        **model, "projection_dim": "5", "dropout": "0.0", "namespace_to_cache": "tokens", "requires_grad": "true"})
    assert all(value.requires_grad for value in embedder.parameters())
    assert embedder.get_output_dim() == 5 and len(embedder._elmo._elmo_lstm._word_embedding.weight) == 3
    without = ElmoTokenEmbedder.from_params(None, model)
    assert without._projection is None and without._elmo._dropout.p == 0.5
    assert {name for name, value in without.named_parameters() if value.requires_grad} == {
        f"_elmo.scalar_mix_0.{name}" for name in ("gamma", *(f"scalar_parameters.{k}" for k in range(3)))}
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
    vectors = -torch.rand(2, 2, 3)  # AllenNLP's mask would drop negative vectors
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
        projected = expected @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        gate = 1 / (1 + np.exp(-projected[..., 3:]))
        expected = gate * expected + (1 - gate) * np.tanh(projected[..., :3])
    assert np.abs(layers(x).detach().numpy() - expected).max() < SAME_MODEL
    layers(x).sum().backward()
    assert all(value.grad.any() for value in layers.parameters())
