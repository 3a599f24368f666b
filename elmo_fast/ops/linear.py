"""A product with a bias: chooses the backend."""

import torch

from elmo_fast.ops import native_cpu, native_linear
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.checks import check_product
from elmo_fast.ops.precision import full_precision


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, backend: str = "auto",
           precision: str | None = None, bounded: bool = False) -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] -> x W + b [N, M]; `backend` as in `elmo_fast.ops.backend`.

    `precision` and `bounded` as in `elmo_fast.ops.char_cnn`, but the native kernel's result is fp32.
    """
    check_product(x, weight, bias)
    if resolve("linear", backend, x, weight, bias) != "native":
        return torch.addmm(full_precision(bias), full_precision(x), full_precision(weight))
    if x.device.type == "cuda":
        from elmo_fast.ops import native_cuda

        return native_cuda.linear(x, weight, bias, precision, bounded)
    run = native_linear.linear if needs_gradient((x, weight, bias)) else native_cpu.linear
    return run(full_precision(x), weight, bias)
