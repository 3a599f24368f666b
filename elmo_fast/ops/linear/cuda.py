"""Products on an NVIDIA GPU: a Triton kernel, its packed weights and operand types. Sums are always fp32."""

import torch

from elmo_fast.ops.device import on
from elmo_fast.ops.library import library
from elmo_fast.ops.linear.arguments import HighwayArguments, LinearArguments
from elmo_fast.ops.numerics import numerics, type_of
from elmo_fast.ops.precision import operands_of
from elmo_fast.ops.weight_cache import cached


def linear(*arguments):
    call = LinearArguments(*arguments)
    x, operands, (weight, bias) = call.x, operands_of(call.precision, call.bounded), call.weights
    if operands == "ieee":  # PyTorch's fp32 product is the fastest
        with numerics("highest", x.device):
            return torch.addmm(bias.float(), x.float(), weight.float())
    return _product(x, call.weights, operands, x.new_empty(len(x), call.outputs, dtype=torch.float32))


def highway(*arguments):
    call = HighwayArguments(*arguments)
    operands = operands_of(call.precision, call.bounded)
    return _product(call.x, call.weights, operands, call.x.new_empty(call.x.shape, dtype=type_of(operands)))


def _product(x: torch.Tensor, weights, operands: str, out: torch.Tensor) -> torch.Tensor:
    from elmo_fast.kernels.highway import pack_product, product

    dtype = type_of(operands)
    parts = [cached((part,), f"product {operands}", lambda tensors: pack_product(tensors[0], operands, dtype))
             if part.dim() == 2 else part.float() for part in weights]
    with on(x.device):
        product(x.to(dtype).contiguous(), parts, operands, out)
    return out


OPS = {"linear": linear, "highway": highway}

for _name, _implementation in OPS.items():
    library.impl(_name, _implementation, "CUDA")
