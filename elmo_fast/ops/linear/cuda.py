"""Products on an NVIDIA GPU: a Triton kernel, or cuBLAS; packed weights and operand types. Sums are always fp32."""

import logging
from collections.abc import Callable

import torch

from elmo_fast.ops import choices
from elmo_fast.ops.backend import lacks_fence
from elmo_fast.ops.device import on, refuse_capture
from elmo_fast.ops.library import library
from elmo_fast.ops.linear.arguments import HighwayArguments, LinearArguments
from elmo_fast.ops.numerics import gemm, numerics, type_of
from elmo_fast.ops.precision import OPERANDS, operands_of
from elmo_fast.ops.weight_cache import cached

logger = logging.getLogger(__name__)


TRITON, CUBLAS = "Triton", "cuBLAS"
_ROWS = {"few": 64, "many": 4096}  # of a measurement


def linear(*arguments):
    call = LinearArguments(*arguments)
    refuse_capture(call.x.device)
    operands = operands_of(call.precision, call.bounded)

    def ways(x: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
        return {TRITON: lambda: _product(x, call.weights, operands,
                                         x.new_empty(len(x), call.outputs, dtype=torch.float32)),
                CUBLAS: lambda: _sums(x, *call.weights, operands)}

    return ways(call.x)[_way("linear", ways, call, operands)]()


def highway(*arguments):
    call = HighwayArguments(*arguments)
    refuse_capture(call.x.device)
    operands = operands_of(call.precision, call.bounded)

    def ways(x: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
        return {TRITON: lambda: _product(x, call.weights, operands, x.new_empty(x.shape, dtype=type_of(operands))),
                CUBLAS: lambda: _highway_of_sums(x.to(type_of(operands)), *call.weights, operands)}

    return ways(call.x)[_way("highway", ways, call, operands)]()


def _way(op: str, ways: Callable[[torch.Tensor], dict[str, Callable[[], torch.Tensor]]],
         call: LinearArguments | HighwayArguments, operands: str) -> str:
    """Triton's kernel or cuBLAS: the faster, by measuring, where the kernel is right; in fp32 cuBLAS."""
    if operands == "ieee":
        return CUBLAS
    from elmo_fast.kernels.configs import amount_of, generation_of

    (rows, inner), device = call.x.shape, call.x.device
    if lacks_fence(generation_of(device)):
        return CUBLAS
    amount = amount_of(rows)

    def measure() -> choices.Measured | None:
        generator = torch.Generator(device).manual_seed(0)
        both = ways(torch.randn(_ROWS[amount], inner, device=device, generator=generator))
        found, expected = (work().float() for work in both.values())
        error, limit = ((found - expected).norm() / expected.norm()).item(), 2 * OPERANDS[operands].tolerance
        if not error <= limit:
            logger.warning("%s runs on cuBLAS: Triton's kernel differs from it by %g, expected at most %g", op, error,
                           limit)
            return None
        with on(device):
            return choices.times_of(both)

    name = f"{op} of {inner} x {call.outputs}, {operands}, {amount} tokens"
    return choices.choose(device, name, measure) or CUBLAS


def _sums(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, operands: str) -> torch.Tensor:
    """x W + b in fp32 by torch's product."""
    dtype = type_of(operands)
    with numerics("high" if operands == "tf32" else "highest", x.device):
        if dtype == torch.float32:
            return torch.addmm(bias.float(), x.float(), weight.float())
        sums = x.new_empty(len(x), weight.shape[1], dtype=torch.float32)
        gemm(x.to(dtype), cached((weight,), f"cublas {operands}", lambda tensors: tensors[0].to(dtype)), sums)
        return sums.add_(bias.float())


def _highway_of_sums(x, w_carry, b_carry, w_transform, b_transform, operands: str) -> torch.Tensor:
    gate = torch.sigmoid_(_sums(x, w_carry, b_carry, operands))
    value = torch.relu_(_sums(x, w_transform, b_transform, operands))
    return (gate * value + (1 - gate) * x).to(x.dtype)


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
