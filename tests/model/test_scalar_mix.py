import copy

import pytest
import torch

from elmo_fast import ScalarMix

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def drawn(count=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 4, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("norm", [False, True])
def test_mixture(norm):
    """Layer norm has one mean and one deviation for the unmasked elements of all sentences."""
    mix, tensors = ScalarMix(3, do_layer_norm=norm), drawn()
    with torch.no_grad():
        for parameter, value in zip(mix.parameters(), [0.5, 0.1, -0.2, 0.7]):
            parameter.fill_(value)
    assert mix.gamma == 0.5
    shares = torch.softmax(torch.tensor([0.1, -0.2, 0.7]), 0)
    real = [tensor[MASK.bool()].double() for tensor in tensors]
    normed = [(tensor - one.mean()) / (one.var(unbiased=False) + 1e-12).sqrt() for tensor, one in zip(tensors, real)]
    expected = 0.5 * sum(share * tensor for share, tensor in zip(shares, normed if norm else tensors))
    for mask in (MASK, MASK.bool(), MASK.float(), *[None] * (not norm)):
        assert torch.allclose(mix(tensors, mask), expected.float(), atol=1e-6 if norm else 1e-8)


def test_layer_norm_in_half_precision_counts_in_full():
    mix = ScalarMix(1, do_layer_norm=True).half()
    tensor = torch.randn(64, 50, 100, generator=torch.Generator().manual_seed(0)).half()
    found = mix([tensor], torch.ones(64, 50))
    expected = ((tensor.float() - tensor.float().mean()) / tensor.float().std()).half()
    assert found.dtype == torch.float16
    assert (found - expected).abs().max() < 5e-3


def test_fixed_parameters_pick_a_layer():
    mix, tensors = ScalarMix(3, initial_scalar_parameters=[-9e10, 1, -9e10], trainable=False), drawn()
    assert torch.equal(mix(tensors), tensors[1])
    assert not any(value.requires_grad for value in mix.parameters())


def test_names_and_gradients():
    mix = ScalarMix(3)
    names = [name for name, _ in mix.named_parameters()]
    assert sorted(names) == ["gamma", "scalar_parameters.0", "scalar_parameters.1", "scalar_parameters.2"]
    mix(drawn()).sum().backward()
    assert all(value.grad.abs() > 0 for value in mix.parameters())
    twin = copy.deepcopy(mix)
    assert len(twin.scalar_parameters) == 3
    assert twin.scalar_parameters[-1] is list(twin.scalar_parameters)[2]
    normed, tensors = ScalarMix(2, do_layer_norm=True).double(), [one.double().requires_grad_() for one in drawn(2)]
    assert torch.autograd.gradcheck(lambda *tensors: normed(tensors, MASK), tensors)
