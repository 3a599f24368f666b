"""The char encoder on an NVIDIA GPU: Triton kernels, their packed weights and operand types.

`operands_of` names what products run on: `ieee` is fp32 throughout, `tf32` lets the tensor cores round fp32 operands,
`fp16` and `bf16` are the types of operands and results. Sums are fp32 always.
"""

import contextlib

import torch

from elmo_fast.ops.precision import numerics
from elmo_fast.ops.schemas import RESULTS, gradient_numerics, library, no_gradient, operands_of
from elmo_fast.ops.torch import char_cnn as torch_char_cnn
from elmo_fast.ops.weight_cache import cached


def char_cnn(ids, char_embed, weights, biases, activation, precision, bounded, save):
    from elmo_fast.kernels import char_cnn as kernel

    operands = operands_of(precision, bounded)

    def pack(tensors):
        return kernel.PackedFilters(tensors[0], tensors[1:][:len(weights)], tensors[1:][len(weights):], operands)

    filters = cached((char_embed, *weights, *biases), f"char_cnn {operands}", pack)
    out = torch.empty(len(ids), sum(filters.counts), dtype=RESULTS[operands], device=ids.device)
    with _on(ids.device):
        kernel.char_cnn(ids.long().contiguous(), filters, activation, torch_char_cnn.PADDING_ID, out)
    return out, ids.new_empty(0, dtype=torch.int32)


def char_cnn_backward(grad, values, picks, ids, char_embed, weights, biases, activation, precision, bounded, needed):
    """Recomputed in torch: the kernel saves no windows."""
    with _autograd_enabled():
        found = torch_char_cnn.gradients(ids, [char_embed, *weights, *biases], activation, grad, needed,
                                         lambda: gradient_numerics(precision, ids.device))
    return [no_gradient(grad) if each is None else each for each in found]


def highway(x, weights, packed, precision, bounded):
    from elmo_fast.kernels import highway as kernel

    operands, (w_carry, b_carry, w_transform, b_transform) = operands_of(precision, bounded), weights
    matrices = [_packed_matrix(matrix, operands) for matrix in (w_carry, w_transform)]
    x = x.to(RESULTS[operands]).contiguous()
    out = torch.empty_like(x)
    with _on(x.device):
        kernel.highway(x, matrices[0], b_carry.float(), matrices[1], b_transform.float(), operands, out)
    return out


def linear(x, weights, packed, outputs, precision, bounded):
    from elmo_fast.kernels import highway as kernel

    operands, (weight, bias) = operands_of(precision, bounded), weights
    if operands == "ieee":  # PyTorch's own fp32 product is the fastest there is
        with numerics("highest", x.device):
            return torch.addmm(bias.float(), x.float(), weight.float())
    matrix = _packed_matrix(weight, operands)
    x = x.to(RESULTS[operands]).contiguous()
    out = torch.empty(len(x), outputs, dtype=torch.float32, device=x.device)
    with _on(x.device):
        kernel.linear(x, matrix, bias.float(), operands, out)
    return out


def _packed_matrix(weight: torch.Tensor, operands: str) -> torch.Tensor:
    from elmo_fast.kernels import highway as kernel

    return cached((weight,), f"product {operands}",
                  lambda tensors: kernel.pack_product(tensors[0], operands, RESULTS[operands]))


def _on(device: torch.device):
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _autograd_enabled():
    """Enable autograd inside an op of our own, which torch runs below it."""
    below = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView"):
        below = below.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), below)


OPS = {"char_cnn": char_cnn, "char_cnn_backward": char_cnn_backward, "highway": highway, "linear": linear}

for _name, _implementation in OPS.items():
    library.impl(_name, _implementation, "CUDA")
