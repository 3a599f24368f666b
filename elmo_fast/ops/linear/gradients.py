"""Fake implementations of the products, for `torch.compile`, and their gradients."""

import functools
from collections.abc import Callable

import torch

from elmo_fast.engine.precision import operands_of
from elmo_fast.ops.library import register
from elmo_fast.ops.linear import reference
from elmo_fast.ops.linear.arguments import HighwayArguments, LinearArguments
from elmo_fast.ops.numerics import full_precision, gradient_numerics, type_of


def _fake_highway(*arguments):
    call = HighwayArguments(*arguments)
    dtype = torch.float32 if call.packed is not None else type_of(operands_of(call.precision, call.bounded))
    return torch.empty_like(call.x, dtype=dtype)


def _fake_linear(*arguments):
    call = LinearArguments(*arguments)
    return call.x.new_empty(call.x.shape[0], call.outputs, dtype=torch.float32)


def _save(arguments: type, ctx, inputs, output):
    call = arguments(*inputs)
    ctx.call = call._replace(x=None, weights=[], packed=None)
    ctx.save_for_backward(call.x, *call.weights)


def _gradient(run: Callable, ctx, grad):
    """Gradients of `run` at the saved tensors, recomputed in fp32, or in tf32 where the products had 16 bits."""
    need = type(ctx.call)(*ctx.needs_input_grad)
    needed = [need.x, *need.weights]
    leaves = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(ctx.saved_tensors, needed)]
    with torch.enable_grad(), gradient_numerics(ctx.call.precision, grad.device):
        value = run(*map(full_precision, leaves))
        grads = iter(torch.autograd.grad(value, [leaf for leaf in leaves if leaf.requires_grad], grad.to(value.dtype)))
    x, *weights = (next(grads) if wanted else None for wanted in needed)
    return type(need)(*[None] * len(need))._replace(x=x, weights=weights)


register("linear", _fake_linear, functools.partial(_gradient, reference.linear),
         functools.partial(_save, LinearArguments))
register("highway", _fake_highway, functools.partial(_gradient, reference.highway),
         functools.partial(_save, HighwayArguments))
