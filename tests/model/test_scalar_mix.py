import copy

import pytest
import torch

from elmo_fast import ConfigurationError, ScalarMix

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def layers(count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, 4, generator=generator) for _ in range(count)]


def set_scalars(mix, values, gamma):
    with torch.no_grad():
        for scalar, value in zip(mix.scalar_parameters, values):
            scalar.fill_(value)
        mix.gamma.fill_(gamma)


def test_mixture():
    mix, tensors = ScalarMix(3), layers()
    set_scalars(mix, [0.1, -0.2, 0.7], 1.5)
    shares = torch.softmax(torch.tensor([0.1, -0.2, 0.7]), 0)
    expected = 1.5 * sum(share * tensor for share, tensor in zip(shares, tensors))
    assert torch.allclose(mix(tensors), expected)
    assert torch.allclose(mix(tensors, MASK), expected)


def test_layer_norm_over_the_whole_batch():
    mix, tensors = ScalarMix(3, do_layer_norm=True), layers()
    set_scalars(mix, [0.1, -0.2, 0.7], 0.5)
    shares = torch.softmax(torch.tensor([0.1, -0.2, 0.7]), 0)
    normed = []
    for tensor in tensors:
        real = tensor[MASK.bool()].double()  # the unmasked elements of all sentences, one mean for all of them
        deviation = (real.var(unbiased=False) + 1e-12).sqrt()
        normed.append((tensor - real.mean()) / deviation)
    expected = 0.5 * sum(share * tensor for share, tensor in zip(shares, normed))
    for mask in (MASK, MASK.bool(), MASK.float()):
        assert torch.allclose(mix(tensors, mask), expected.float(), atol=1e-6)


def test_layer_norm_in_half_precision_counts_in_full():
    mix = ScalarMix(1, do_layer_norm=True).half()
    tensor = torch.randn(64, 50, 100, generator=torch.Generator().manual_seed(0)).half()
    found = mix([tensor], torch.ones(64, 50))
    expected = ((tensor.float() - tensor.float().mean()) / tensor.float().std()).half()
    assert found.dtype == torch.float16
    assert (found - expected).abs().max() < 5e-3


def test_fixed_parameters_pick_a_layer():
    mix, tensors = ScalarMix(3, initial_scalar_parameters=[-9e10, 1, -9e10], trainable=False), layers()
    assert torch.equal(mix(tensors), tensors[1])
    assert not any(value.requires_grad for value in mix.parameters())


def test_names_and_gradients():
    mix = ScalarMix(3)
    names = [name for name, _ in mix.named_parameters()]
    assert sorted(names) == ["gamma", "scalar_parameters.0", "scalar_parameters.1", "scalar_parameters.2"]
    mix(layers()).sum().backward()
    assert all(value.grad.abs() > 0 for value in mix.parameters())
    twin = copy.deepcopy(mix)
    assert len(twin.scalar_parameters) == 3
    assert twin.scalar_parameters[-1] is list(twin.scalar_parameters)[2]


def test_gradients_are_right():
    mix, tensors = ScalarMix(2, do_layer_norm=True).double(), [each.double().requires_grad_() for each in layers(2)]
    assert torch.autograd.gradcheck(lambda *each: mix(each, MASK), tensors)


@pytest.mark.parametrize("call, named", [
    (lambda: ScalarMix(3, initial_scalar_parameters=[1.0]), "initial_scalar_parameters: expected 3 numbers"),
    (lambda: ScalarMix(3)(layers(2)), "tensors: expected 3"),
    (lambda: ScalarMix(3, do_layer_norm=True)(layers()), "mask: expected a tensor"),
])
def test_refuses(call, named):
    with pytest.raises(ConfigurationError, match=named):
        call()
