"""Products on an NVIDIA GPU: a Triton kernel, or cuBLAS; packed weights and operand types. Sums are always fp32."""

import torch

from elmo_fast.ops.backend import triton_version
from elmo_fast.ops.device import on
from elmo_fast.ops.library import library
from elmo_fast.ops.linear.arguments import HighwayArguments, LinearArguments
from elmo_fast.ops.numerics import gemm, numerics, type_of
from elmo_fast.ops.precision import operands_of
from elmo_fast.ops.weight_cache import cached


def linear(*arguments):
    call = LinearArguments(*arguments)
    x, operands = call.x, operands_of(call.precision, call.bounded)
    if _takes_cublas(operands, x.device):
        return _sums(x, *call.weights, operands)
    return _product(x, call.weights, operands, x.new_empty(len(x), call.outputs, dtype=torch.float32))


def highway(*arguments):
    call = HighwayArguments(*arguments)
    operands = operands_of(call.precision, call.bounded)
    if not _takes_cublas(operands, call.x.device):
        return _product(call.x, call.weights, operands, call.x.new_empty(call.x.shape, dtype=type_of(operands)))
    x, (w_carry, b_carry, *transform) = call.x.to(type_of(operands)), call.weights
    gate = torch.sigmoid_(_sums(x, w_carry, b_carry, operands))
    value = torch.relu_(_sums(x, *transform, operands))
    return (gate * value + (1 - gate) * x).to(x.dtype)


def _takes_cublas(operands: str, device: torch.device) -> bool:
    """Whether cuBLAS multiplies: in fp32, where it is the fastest, and where Triton's kernel may read too early.

    On sm_90 and newer Triton before 3.8 has no fence between a copy to shared memory and wgmma (triton#9610).
    """
    if operands == "ieee":
        return True
    from elmo_fast.kernels.configs import generation_of

    return generation_of(device) >= 90 and triton_version() < (3, 8)


def _sums(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, operands: str) -> torch.Tensor:
    """x W + b in fp32 by torch's product."""
    dtype = type_of(operands)
    with numerics("high" if operands == "tf32" else "highest", x.device):
        if dtype == torch.float32:
            return torch.addmm(bias.float(), x.float(), weight.float())
        sums = x.new_empty(len(x), weight.shape[1], dtype=torch.float32)
        gemm(x.to(dtype), cached((weight,), f"cublas {operands}", lambda tensors: tensors[0].to(dtype)), sums)
        return sums.add_(bias.float())


def _product(x: torch.Tensor, weights, operands: str, out: torch.Tensor) -> torch.Tensor:
    from elmo_fast.kernels.highway import pack_product, product

    dtype = type_of(operands)
    parts = [cached((part,), f"product {operands}", lambda tensors: pack_product(tensors[0], dtype))
             if part.dim() == 2 else part.float() for part in weights]
    with on(x.device):
        product(x.to(dtype).contiguous(), parts, operands, out)
    return out


OPS = {"linear": linear, "highway": highway}

for _name, _implementation in OPS.items():
    library.impl(_name, _implementation, "CUDA")
