"""A product with a bias: chooses the backend."""

import torch

from elmo_fast.ops import native_cpu
from elmo_fast.ops.backend import resolve
from elmo_fast.ops.checks import check_product
from elmo_fast.ops.precision import full_precision


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, backend: str = "auto") -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] -> x W + b [N, M]; `backend` as in `elmo_fast.ops.backend`."""
    check_product(x, weight, bias)
    if resolve("linear", backend, x, weight, bias) == "native":
        return native_cpu.linear(x, weight, bias)
    return torch.addmm(full_precision(bias), x, full_precision(weight))
