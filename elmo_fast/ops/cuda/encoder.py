"""The char encoder on an NVIDIA GPU: Triton kernels, their packed weights and operand types. Sums are fp32 always."""

from collections.abc import Sequence

import torch

from elmo_fast.ops.device import on
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.schemas import RESULTS, gradient_numerics, library, no_gradient, operands_of
from elmo_fast.ops.torch import char_cnn as torch_char_cnn
from elmo_fast.ops.weight_cache import cached

# fp16's largest number, less what rounding of operands and results may add.
LARGEST_FP16 = 0.98 * torch.finfo(torch.float16).max

Pair = tuple[torch.Tensor, torch.Tensor]


def char_cnn(ids, char_embed, weights, biases, activation, precision, bounded, save):
    from elmo_fast.kernels import char_cnn as kernel

    operands, end = operands_of(precision, bounded), 1 + len(weights)
    dtype = RESULTS[operands]
    filters = cached((char_embed, *weights, *biases), f"char_cnn {operands}",
                     lambda tensors: kernel.PackedFilters(tensors[0], tensors[1:end], tensors[end:], operands, dtype))
    out = torch.empty(len(ids), sum(filters.counts), dtype=dtype, device=ids.device)
    with on(ids.device):
        kernel.char_cnn(ids.long().contiguous(), torch_char_cnn.token_lengths(ids).int(), filters, activation, out)
    return out, ids.new_empty(0, dtype=torch.int32)


def char_cnn_backward(grad, values, picks, ids, char_embed, weights, biases, activation, precision, bounded, needed):
    """Recomputed in torch, with the autograd that torch runs an op of our own below: the kernel saves no windows."""
    below, tensors = torch._C._dispatch_tls_local_exclude_set(), [char_embed, *weights, *biases]
    for key in ("AutogradFunctionality", "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView"):
        below = below.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), below):
        found = torch_char_cnn.gradients(ids, tensors, activation, grad, needed,
                                         lambda: gradient_numerics(precision, ids.device))
    return [no_gradient(of) if each is None else each for each, of in zip(found, tensors)]


def highway(x, weights, packed, precision, bounded):
    operands = operands_of(precision, bounded)
    return _product(x, weights, operands, x.new_empty(x.shape, dtype=RESULTS[operands]))


def linear(x, weights, packed, outputs, precision, bounded):
    operands, (weight, bias) = operands_of(precision, bounded), weights
    if operands == "ieee":  # PyTorch's own fp32 product is the fastest there is
        with numerics("highest", x.device):
            return torch.addmm(bias.float(), x.float(), weight.float())
    return _product(x, weights, operands, x.new_empty(len(x), outputs, dtype=torch.float32))


def _product(x: torch.Tensor, weights, operands: str, out: torch.Tensor) -> torch.Tensor:
    from elmo_fast.kernels.highway import pack_product, product

    dtype = RESULTS[operands]
    parts = [cached((part,), f"product {operands}", lambda tensors: pack_product(tensors[0], operands, dtype))
             if part.dim() == 2 else part.float() for part in weights]
    with on(x.device):
        product(x.to(dtype).contiguous(), parts, operands, out)
    return out


OPS = {"char_cnn": char_cnn, "char_cnn_backward": char_cnn_backward, "highway": highway, "linear": linear}

for _name, _implementation in OPS.items():
    library.impl(_name, _implementation, "CUDA")


def fits_fp16(char_embed: torch.Tensor, filters: Sequence[Pair], activation: str,
              highways: Sequence[Sequence[torch.Tensor]], projection: Pair | None) -> bool:
    """Whether operands and results of the char encoder stay within fp16's range for every token that can be.

    `highways` are (W_carry, b_carry, W_transform, b_transform) by layer. The answer takes one copy back from the
    device and is cached until a weight changes. Weights in training are skipped and count as unbounded, so that a
    training step waits for nothing; so do those of a graph that is being compiled.
    """
    tensors = [char_embed, *(part for group in (*filters, *highways, projection or ()) for part in group)]
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return False
    return cached(tensors, f"fits_fp16 {activation}",
                  lambda _: bool(_largest_value(char_embed, filters, activation, highways, tensors) < LARGEST_FP16))


def _largest_value(char_embed, filters, activation, highways, tensors) -> torch.Tensor:
    """An upper bound of every weight, operand and result; NaN where a weight is: fp64, no dimension."""
    def size(tensor):
        return tensor.detach().double().abs()

    seen = size(char_embed).amax(0)  # [E]
    window = torch.stack([((size(weight)[0] * seen[:, None]).sum((0, 1)) + size(bias)).amax()
                          for weight, bias in filters]).amax()
    bound = torch.clamp(window, max=1.0) if activation == "tanh" else window
    for _, _, weight, bias in highways:
        bound = torch.maximum(bound, (size(weight).sum(0) * bound + size(bias)).amax())
    return torch.stack([window, bound, *(size(tensor).amax() for tensor in tensors)]).amax()
