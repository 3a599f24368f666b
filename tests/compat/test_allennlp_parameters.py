"""What programs do with AllenNLP's parameters and parts: write, average, name, decay, replace and wrap them."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.nn.utils import parametrize

from elmo_fast import batch_to_ids
from elmo_fast.compat.allennlp import Elmo
from elmo_fast.testing import SAME_MODEL
from tests.support.models import SENTENCES

IDS = batch_to_ids(SENTENCES)


def model(files, **arguments):
    return Elmo(*files, 1, dropout=0, state="zero", **arguments).eval()


def layers(elmo):
    with torch.no_grad():
        return torch.stack(elmo._elmo_lstm(IDS)["activations"])


def changed(elmo, seed=0):
    """Other values for the biLM's parameters, by name."""
    generator = torch.Generator().manual_seed(seed)
    return {name: value + 0.1 * torch.randn(value.shape, generator=generator)
            for name, value in elmo.state_dict().items()}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("write", [
    lambda elmo, values: elmo.load_state_dict(values, assign=True),
    lambda elmo, values: [elmo.state_dict()[name].copy_(value) for name, value in values.items()],
    lambda elmo, values: [own.copy_(value) for own, value in zip(elmo.state_dict().values(), values.values())],
    lambda elmo, values: [elmo.get_parameter(name).data.lerp_(value, 1) for name, value in values.items()],
    lambda elmo, values: [setattr(elmo.get_parameter(name), "data", value) for name, value in values.items()],
])
def test_values_that_are_written(files, write, requires_grad):
    elmo, loaded = (model(files, requires_grad=requires_grad) for _ in range(2))
    before, values = layers(elmo), changed(elmo)
    loaded.load_state_dict(values)
    with torch.no_grad():
        write(elmo, values)
    assert torch.equal(layers(elmo), layers(loaded)) and not torch.allclose(layers(elmo), before, atol=1e-2)


def test_names(files):
    elmo = model(files, requires_grad=True)
    names = list(elmo.state_dict())
    assert [name for name, _ in elmo.named_parameters()] == names == list(get_model_state_dict(elmo))
    assert {part.data_ptr() for part in elmo.state_dict().values()} == {
        elmo.get_parameter(name).data_ptr() for name in names}
    assert sum("bias" in name for name in names) == 4 + 2 + 1 + 4  # filters, highways, projection, cells
    assert sum("forward_layer_0" in name for name in names) == 4
    kept = elmo.state_dict(keep_vars=True)
    elmo(IDS)["elmo_representations"][0].sum().backward()
    assert all(value.grad is not None for value in kept.values())


def test_a_functional_call(files):
    elmo, loaded = model(files), model(files)
    values = changed(elmo)
    loaded.load_state_dict(values)
    with torch.no_grad():
        actual = torch.func.functional_call(elmo, values, (IDS,))["elmo_representations"][0]
        assert torch.equal(actual, loaded(IDS)["elmo_representations"][0])
    assert torch.equal(layers(elmo), layers(model(files)))


def trained(files, watch):
    """Losses and weights after AdamW with decay of all but biases, with hooks on the parts if `watch`."""
    elmo = Elmo(*files, 1, dropout=0, requires_grad=True).double()
    if watch:
        for part in elmo.modules():
            part.register_forward_hook(lambda *_: None)
    named = list(elmo.named_parameters())
    steps = torch.optim.AdamW([
        {"params": [value for name, value in named if "bias" not in name], "weight_decay": 0.1},
        {"params": [value for name, value in named if "bias" in name], "weight_decay": 0.0}], lr=1e-3)
    losses = []
    for number in range(60):
        ids = batch_to_ids([SENTENCES[number % 3], SENTENCES[4 + number % 2]])
        outputs = elmo(ids)["elmo_representations"][0]
        loss = (outputs - torch.sin(torch.arange(outputs.numel()) + number).view(outputs.shape)).square().mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.detach())
    return torch.stack(losses), elmo.state_dict()


def test_training_is_that_of_the_parts_in_plain_torch(files):
    """With carried states and in float64, so that nothing but rounding could differ."""
    (losses, weights), (of_parts, weights_of_parts) = (trained(files, watch) for watch in (False, True))
    assert losses[-1] < losses[0] and torch.allclose(losses, of_parts, rtol=0, atol=1e-9)
    for name, value in weights.items():
        assert torch.allclose(value, weights_of_parts[name], rtol=0, atol=1e-6), name


class Wrapped(nn.Module):
    def __init__(self, part, factor=2):
        super().__init__()
        self.part, self.factor = part, factor

    def forward(self, inputs, *more):
        return self.part(self.factor * inputs, *more)


class Low(nn.Linear):
    """A linear layer with an adapter of rank 1."""

    def __init__(self, linear):
        nn.Module.__init__(self)
        self.linear, self.a = linear, nn.Parameter(torch.ones(1, linear.in_features))
        self.b = nn.Parameter(torch.full((linear.out_features, 1), 0.1))

    def forward(self, x):
        return self.linear(x) + x @ self.a.t() @ self.b.t()


class Half(nn.Module):
    def forward(self, weight):
        return 0.5 * weight


def merged(linear, adapter):
    linear.weight.data += adapter.b.detach() @ adapter.a.detach()


@pytest.mark.parametrize("replace, edit", [
    # the part that is replaced or wrapped, and the same by an edit of its weights
    (lambda bilm: setattr(bilm, "_elmo_lstm", Wrapped(bilm._elmo_lstm)),
     lambda bilm: [cell.input_linearity.weight.data.mul_(2) for cell in (
         bilm._elmo_lstm.forward_layer_0, bilm._elmo_lstm.backward_layer_0)]),
    (lambda bilm: setattr(bilm._elmo_lstm, "forward_layer_0", Wrapped(bilm._elmo_lstm.forward_layer_0)),
     lambda bilm: bilm._elmo_lstm.forward_layer_0.input_linearity.weight.data.mul_(2)),
    (lambda bilm: setattr(bilm._token_embedder, "char_conv_0", Wrapped(bilm._token_embedder.char_conv_0)),
     lambda bilm: bilm._token_embedder.char_conv_0.weight.data.mul_(2)),
    (lambda bilm: setattr(bilm._token_embedder, "_projection", Low(bilm._token_embedder._projection)),
     lambda bilm: merged(bilm._token_embedder._projection, Low(bilm._token_embedder._projection))),
    (lambda bilm: setattr(bilm._elmo_lstm.forward_layer_1, "state_linearity", Low(
        bilm._elmo_lstm.forward_layer_1.state_linearity)),
     lambda bilm: merged(bilm._elmo_lstm.forward_layer_1.state_linearity, Low(
         bilm._elmo_lstm.forward_layer_1.state_linearity))),
    (lambda bilm: parametrize.register_parametrization(bilm._elmo_lstm.forward_layer_0.state_projection, "weight",
                                                       Half()),
     lambda bilm: bilm._elmo_lstm.forward_layer_0.state_projection.weight.data.mul_(0.5)),
    (lambda bilm: [setattr(cell, "memory_cell_clip_value", 0.1) for cell in bilm._elmo_lstm.forward_layers],
     lambda bilm: [cell.register_forward_pre_hook(lambda cell, _: setattr(cell, "memory_cell_clip_value", 0.1))
                   for cell in bilm._elmo_lstm.forward_layers]),
])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_replaced_parts(files, replace, edit, requires_grad):
    replaced, edited, plain = (model(files, requires_grad=requires_grad) for _ in range(3))
    replace(replaced._elmo_lstm)
    edit(edited._elmo_lstm)
    actual = layers(replaced)
    assert torch.allclose(actual[1:], layers(edited)[1:], atol=SAME_MODEL)
    assert not torch.allclose(actual, layers(plain), atol=1e-3)
    assert torch.equal(layers(copy.deepcopy(replaced)), actual)


@pytest.mark.filterwarnings("ignore:.*quantiz")
def test_quantized_parts(files):
    quantized = torch.ao.quantization.quantize_dynamic(model(files), {nn.Linear}, dtype=torch.qint8)
    plain = layers(model(files))
    error = (layers(quantized) - plain).norm() / plain.norm()
    assert 1e-4 < error < 0.1
