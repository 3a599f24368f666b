"""Compute a product with a bias, or a highway layer, on the backend that is chosen."""

import torch

# the first three register implementations
import elmo_fast.ops.linear.cpu
import elmo_fast.ops.linear.cuda
import elmo_fast.ops.linear.gradients  # noqa: F401
from elmo_fast.engine.backend import effective_precision
from elmo_fast.engine.precision import check_gradients
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.linear import reference
from elmo_fast.ops.numerics import active_precision, full_precision


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, backend: str = "auto",
           precision: str | None = None, bounded: bool = False) -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] -> x W + b [N, M]; `backend` as in `elmo_fast.ops.backend`.

    `precision` is the precision of the native kernels, by default that of the enclosing `numerics.numerics`; their
    result is fp32. `bounded` as in `elmo_fast.ops.char_cnn`.
    On the CPU calls with gradients run in torch: packing does not pay for weights that change after every use.
    """
    check_product(x, weight, bias)
    operands, precision = (x, weight, bias), precision or active_precision()
    check_gradients(precision, needs_gradient(operands))
    if resolve("linear", backend, *operands) != "native" or (x.device.type == "cpu" and needs_gradient(operands)):
        return torch.addmm(full_precision(bias), full_precision(x), full_precision(weight))
    if x.device.type == "cpu":
        x, precision = full_precision(x), effective_precision(precision)
    return torch.ops.elmo_fast.linear(x, [weight, bias], precision, bounded)


def highway(x: torch.Tensor, w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
            b_transform: torch.Tensor, *, backend: str = "auto", precision: str | None = None,
            bounded: bool = False) -> torch.Tensor:
    """See `reference.highway`, which is also the torch path: two products leave torch nothing to speed up.

    `precision`, and gradients on the CPU, as in `linear`; `bounded` and the type of the result as in
    `elmo_fast.ops.char_cnn`.
    """
    weights = [w_carry, b_carry, w_transform, b_transform]
    operands, precision = [x, *weights], precision or active_precision()
    check_product(x, w_carry, b_carry)
    check_product(x, w_transform, b_transform)
    check_gradients(precision, needs_gradient(operands))
    if resolve("highway", backend, *operands) != "native" or (x.device.type == "cpu" and needs_gradient(operands)):
        return reference.highway(full_precision(x), *map(full_precision, weights))
    if x.device.type == "cpu":
        x, precision = full_precision(x), effective_precision(precision)
    return torch.ops.elmo_fast.highway(x, weights, precision, bounded)


def computes_in(weight: torch.Tensor, backend: str, precision: str) -> str:
    """The precision in which products with `weight`, without gradients, run when `precision` is asked for.

    On the CPU all but `highest` need the native engine, `high` also AMX; elsewhere they run in `highest`.
    """
    if weight.device.type != "cpu":
        return precision
    with torch.no_grad():
        return effective_precision(precision) if resolve("linear", backend, weight) == "native" else "highest"


def check_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Raise `ValueError` unless x [N, K], weight [K, M] and bias [M] fit together."""
    if weight.dim() != 2:
        raise ValueError(f"weight: expected a matrix, got shape {tuple(weight.shape)}")
    check_shape("x", x, (x.shape[0] if x.dim() else 0, weight.shape[0]))
    check_shape("bias", bias, (weight.shape[1],))


def check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    """Raise `ValueError` unless the tensor holds floats in this shape."""
    if not tensor.is_floating_point():
        raise ValueError(f"{name}: expected floating-point numbers, got {tensor.dtype}")
    if tuple(tensor.shape) != expected or min(expected) < 0:
        raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")
