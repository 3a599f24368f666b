"""One highway layer: chooses the backend."""

import torch

import elmo_fast.ops.cuda.encoder  # noqa: F401  registers the implementation on CUDA
from elmo_fast.ops import reference
from elmo_fast.ops.backend import resolve, trains_on_cpu
from elmo_fast.ops.cpu import on_cpu
from elmo_fast.ops.cpu.linear import packed_highway
from elmo_fast.ops.linear import check_product
from elmo_fast.ops.precision import active_precision, full_precision


def highway(x: torch.Tensor, w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
            b_transform: torch.Tensor, *, backend: str = "auto", precision: str | None = None,
            bounded: bool = False) -> torch.Tensor:
    """See `reference.highway`, which is also the torch path: two products leave nothing to save.

    `precision` as in `elmo_fast.ops.linear`; `bounded` and the type of the result as in `elmo_fast.ops.char_cnn`.
    With gradients on the CPU as `elmo_fast.ops.linear`.
    """
    weights = [w_carry, b_carry, w_transform, b_transform]
    check_product(x, w_carry, b_carry)
    check_product(x, w_transform, b_transform)
    if resolve("highway", backend, x, *weights) != "native" or trains_on_cpu((x, *weights)):
        return reference.highway(full_precision(x), *map(full_precision, weights))
    precision, packed = precision or active_precision(), None
    if x.device.type == "cpu":
        x, precision = full_precision(x), on_cpu(precision)
        packed, weights = packed_highway(*weights, precision), []
    return torch.ops.elmo_fast.highway(x, weights, packed, precision, bounded)
