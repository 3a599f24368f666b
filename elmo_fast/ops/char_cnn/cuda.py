"""The char-CNN on an NVIDIA GPU: a Triton kernel, its packed weights and operand types. Sums are always fp32."""

from collections.abc import Sequence

import torch

from elmo_fast.engine.precision import operands_of
from elmo_fast.ops.char_cnn import pytorch
from elmo_fast.ops.char_cnn.activations import ACTIVATIONS
from elmo_fast.ops.char_cnn.arguments import CharCnnArguments
from elmo_fast.ops.device import on, refuse_capture
from elmo_fast.ops.library import library, no_gradient
from elmo_fast.ops.numerics import gradient_numerics, type_of
from elmo_fast.ops.weight_cache import cached

# fp16's largest number, less a margin for the rounding of operands and results.
LARGEST_FP16 = 0.98 * torch.finfo(torch.float16).max

Pair = tuple[torch.Tensor, torch.Tensor]


def forward(*arguments):
    from elmo_fast.kernels import char_cnn as kernel

    call = CharCnnArguments(*arguments)
    refuse_capture(call.ids.device)
    operands, ids, end = operands_of(call.precision, call.bounded), call.ids, 1 + len(call.weights)
    dtype = type_of(operands)
    filters = cached(call.floats, f"char_cnn {operands}",
                     lambda tensors: kernel.PackedFilters(tensors[0], tensors[1:end], tensors[end:], operands, dtype))
    out = torch.empty(len(ids), sum(filters.counts), dtype=dtype, device=ids.device)
    with on(ids.device):
        kernel.char_cnn(ids.long().contiguous(), pytorch.token_lengths(ids).int(), filters, call.activation, out)
    return out, ids.new_empty(0, dtype=torch.int32)


def backward(grad, values, picks, needed, *arguments):
    """Recompute the op in torch, since the kernel saves no windows; re-enable autograd, which is off inside an op."""
    call, excluded = CharCnnArguments(*arguments), torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        grads = pytorch.gradients(call.ids, call.floats, call.activation, grad, needed,
                                  lambda: gradient_numerics(call.precision, call.ids.device))
    return [no_gradient(tensor) if gradient is None else gradient for gradient, tensor in zip(grads, call.floats)]


OPS = {"char_cnn": forward, "char_cnn_backward": backward}

for _name, _implementation in OPS.items():
    library.impl(_name, _implementation, "CUDA")


def fits_fp16(char_embed: torch.Tensor, filters: Sequence[Pair], activation: str,
              highways: Sequence[Sequence[torch.Tensor]], projection: Pair | None) -> bool:
    """Whether operands and results of the char encoder stay within fp16's range for every possible token.

    `highways` has (W_carry, b_carry, W_transform, b_transform) for every layer. The answer takes one copy from the
    device to the host and is cached until a weight changes. Weights in training, and those of a graph that is being
    compiled, count as unbounded without a check, so that a training step does not wait for the device.
    """
    tensors = [char_embed, *(part for group in (*filters, *highways, projection or ()) for part in group)]
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return False
    return cached(tensors, f"fits_fp16 {activation}",
                  lambda _: bool(_largest_value(char_embed, filters, activation, highways, tensors) < LARGEST_FP16))


def _largest_value(char_embed, filters, activation, highways, tensors) -> torch.Tensor:
    """An upper bound of every weight, operand and result, fp64 []; NaN where a weight is NaN."""
    def size(tensor):
        return tensor.detach().double().abs()

    seen = size(char_embed).amax(0)  # [E]
    window = torch.stack([((size(weight)[0] * seen[:, None]).sum((0, 1)) + size(bias)).amax()
                          for weight, bias in filters]).amax()
    bound = window.clamp(max=ACTIVATIONS[activation].largest)
    for _, _, weight, bias in highways:
        bound = torch.maximum(bound, (size(weight).sum(0) * bound + size(bias)).amax())
    return torch.stack([window, bound, *(size(tensor).amax() for tensor in tensors)]).amax()
