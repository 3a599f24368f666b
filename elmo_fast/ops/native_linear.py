"""Products with a bias, and highway layers, on the C++ engine with gradients. fp32, on the CPU.

Registered with `torch.library` as `torch.ops.elmo_fast.linear_train` and `.linear_backward`. Gradients are products of
the same engine: same bits on any number of threads. Second derivatives raise `RuntimeError`.
"""

import torch

from elmo_fast.ops import native_cpu

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_library.define("linear_train(Tensor x, Tensor weight, Tensor bias, Tensor packed) -> Tensor")
_library.define("linear_backward(Tensor grad, Tensor x, Tensor weight, bool[] needed) -> (Tensor, Tensor, Tensor)")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] -> x W + b [N, M], differentiable in all three."""
    return torch.ops.elmo_fast.linear_train(x.contiguous(), weight, bias, native_cpu.packed_linear(weight, bias, keep=False))


def highway(x: torch.Tensor, w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
            b_transform: torch.Tensor) -> torch.Tensor:
    """As `reference.highway`, differentiable in every operand."""
    gate = torch.sigmoid(linear(x, w_carry, b_carry))
    return gate * torch.relu(linear(x, w_transform, b_transform)) + (1 - gate) * x


def _train(x, weight, bias, packed):
    return torch.ops.elmo_fast.linear(x, packed, *weight.shape, native_cpu.NO_EPILOGUE)


def _fake_train(x, weight, bias, packed):
    return x.new_empty(x.shape[0], weight.shape[1])


def _keep(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx, grad):
    if grad is None:
        return None, None, None, None
    needed = [bool(each) for each in ctx.needs_input_grad[:3]]
    found = torch.ops.elmo_fast.linear_backward(grad.contiguous(), *ctx.saved_tensors, needed)
    return *(each if wanted else None for each, wanted in zip(found, needed)), None


def _run_backward(grad, x, weight, needed):
    grads = list(_fake_backward(grad, x, weight, needed))
    if needed[0]:
        grads[0] = _product(grad, weight.t().contiguous())
    if needed[1] or needed[2]:
        both = _product(torch.cat([x.t(), x.new_ones(1, len(x))]), grad)  # [K + 1, M]
        grads[1:] = [each.clone() if wanted else x.new_empty(0)
                     for each, wanted in zip((both[:-1], both[-1]), needed[1:])]
    return tuple(grads)


def _product(left, right) -> torch.Tensor:
    """left [K, N] x right [N, M]."""
    if not len(right):
        return left.new_zeros(len(left), right.shape[1])
    packed = native_cpu.pack_linear(*right.shape, native_cpu.NO_EPILOGUE, (right, None))
    return torch.ops.elmo_fast.linear(left, packed, *right.shape, native_cpu.NO_EPILOGUE)


def _fake_backward(grad, x, weight, needed):
    shapes = x.shape, weight.shape, weight.shape[1:]
    return tuple(x.new_empty(shape if wanted else 0) for shape, wanted in zip(shapes, needed))


def _no_second_derivatives(ctx, *_):
    raise RuntimeError("linear: the native backend has no second derivatives; backend='torch' has them")


_library.impl("linear_train", _train, "CPU")
_library.impl("linear_backward", _run_backward, "CPU")
torch.library.register_fake("elmo_fast::linear_train", _fake_train, lib=_library)
torch.library.register_fake("elmo_fast::linear_backward", _fake_backward, lib=_library)
torch.library.register_autograd("elmo_fast::linear_train", _backward, setup_context=_keep, lib=_library)
torch.library.register_autograd("elmo_fast::linear_backward", _no_second_derivatives, lib=_library)
