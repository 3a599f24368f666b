"""Products on an NVIDIA GPU: a Triton kernel for highway layers, cuBLAS for the rest. Sums are always fp32."""

import torch

from elmo_fast.engine.precision import operands_of
from elmo_fast.ops.device import on, refuse_capture
from elmo_fast.ops.library import library
from elmo_fast.ops.linear.arguments import ProductArguments
from elmo_fast.ops.numerics import gemm, numerics, type_of
from elmo_fast.ops.weight_cache import cached


def linear(*arguments):
    call = ProductArguments(*arguments)
    refuse_capture(call.x.device)
    return _sums(call.x, *call.weights, operands_of(call.precision, call.bounded))


def highway(*arguments):
    call = ProductArguments(*arguments)
    refuse_capture(call.x.device)
    operands = operands_of(call.precision, call.bounded)
    x = call.x.to(type_of(operands))
    return (_highway_of_sums if operands == "ieee" else _fused_highway)(x, call.weights, operands)


def _sums(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, operands: str) -> torch.Tensor:
    """x W + b in fp32 by torch's product."""
    dtype = type_of(operands)
    with numerics("high" if operands == "tf32" else "highest", x.device):
        if dtype == torch.float32:
            return torch.addmm(bias.float(), x.float(), weight.float())
        sums = x.new_empty(len(x), weight.shape[1], dtype=torch.float32)
        gemm(x.to(dtype), cached((weight,), f"cublas {operands}", lambda tensors: tensors[0].to(dtype)), sums)
        return sums.add_(bias.float())


def _highway_of_sums(x: torch.Tensor, weights: list[torch.Tensor], operands: str) -> torch.Tensor:
    w_carry, b_carry, w_transform, b_transform = weights
    gate = torch.sigmoid_(_sums(x, w_carry, b_carry, operands))
    value = torch.relu_(_sums(x, w_transform, b_transform, operands))
    return (gate * value + (1 - gate) * x).to(x.dtype)


def _fused_highway(x: torch.Tensor, weights: list[torch.Tensor], operands: str) -> torch.Tensor:
    from elmo_fast.kernels.highway import highway, pack_weight

    parts = [cached((part,), f"highway {operands}", lambda tensors: pack_weight(tensors[0], x.dtype))
             if part.dim() == 2 else part.float() for part in weights]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    with on(x.device):
        highway(x.contiguous(), parts, operands, out)
    return out


OPS = {"linear": linear, "highway": highway}

for _name, _implementation in OPS.items():
    library.impl(_name, _implementation, "CUDA")
