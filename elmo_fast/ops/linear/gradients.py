"""Fake implementations of the products, for `torch.compile`, and their gradients."""

import functools
from collections.abc import Callable

import torch

from elmo_fast.engine.precision import operands_of
from elmo_fast.ops.library import register
from elmo_fast.ops.linear import reference
from elmo_fast.ops.linear.arguments import ProductArguments
from elmo_fast.ops.numerics import full_precision, gradient_numerics, type_of


def _fake_highway(*arguments):
    call = ProductArguments(*arguments)
    on_cpu = call.x.device.type == "cpu"
    dtype = torch.float32 if on_cpu else type_of(operands_of(call.precision, call.bounded))
    return torch.empty_like(call.x, dtype=dtype)


def _fake_linear(*arguments):
    call = ProductArguments(*arguments)
    return call.x.new_empty(call.x.shape[0], call.weights[0].shape[1], dtype=torch.float32)


def _save(ctx, inputs, output):
    call = ProductArguments(*inputs)
    ctx.call = call._replace(x=None, weights=[])
    ctx.save_for_backward(call.x, *call.weights)


def _gradient(run: Callable, ctx, grad):
    """Gradients of `run` at the saved tensors, recomputed in fp32, or in tf32 where the products had 16 bits."""
    need = ProductArguments(*ctx.needs_input_grad)
    needed = [need.x, *need.weights]
    leaves = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(ctx.saved_tensors, needed)]
    with torch.enable_grad(), gradient_numerics(ctx.call.precision, grad.device):
        value = run(*map(full_precision, leaves))
        grads = iter(torch.autograd.grad(value, [leaf for leaf in leaves if leaf.requires_grad], grad.to(value.dtype)))
    x, *weights = (next(grads) if wanted else None for wanted in needed)
    return ProductArguments(x, weights, None, None)


register("linear", _fake_linear, functools.partial(_gradient, reference.linear), _save)
register("highway", _fake_highway, functools.partial(_gradient, reference.highway), _save)
