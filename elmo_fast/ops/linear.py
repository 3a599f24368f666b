"""A product with a bias: chooses the backend."""

import torch

from elmo_fast.ops.backend import resolve, trains_on_cpu
from elmo_fast.ops.checks import check_product
from elmo_fast.ops.cpu import linear as native_linear, on_cpu
from elmo_fast.ops.precision import active_precision, full_precision


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, backend: str = "auto",
           precision: str | None = None, bounded: bool = False) -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] -> x W + b [N, M]; `backend` as in `elmo_fast.ops.backend`.

    `precision` is what the native kernels compute in, by default that of `precision.numerics` around the call; their
    result is fp32. `bounded` as in `elmo_fast.ops.char_cnn`.
    On the CPU calls with gradients run in torch: weights that change after each use do not repay their packing.
    """
    check_product(x, weight, bias)
    if resolve("linear", backend, x, weight, bias) != "native" or trains_on_cpu((x, weight, bias)):
        return torch.addmm(full_precision(bias), full_precision(x), full_precision(weight))
    if x.device.type == "cuda":
        from elmo_fast.ops.cuda import encoder

        return encoder.linear(x, weight, bias, precision, bounded)
    return native_linear.linear(full_precision(x), weight, bias, precision=on_cpu(precision or active_precision()))


def computes_in(weight: torch.Tensor, backend: str, precision: str) -> str:
    """The precision that products with `weight`, without gradients, have where `precision` is asked for.

    On the CPU 16-bit products need the native engine and AMX; what stands for them is `highest`.
    """
    if weight.device.type != "cpu":
        return precision
    with torch.no_grad():
        return on_cpu(precision) if resolve("linear", backend, weight) == "native" else "highest"
