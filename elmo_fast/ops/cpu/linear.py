"""The C++ engine's product with a bias, and the highway layer, which is one with an epilogue."""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import aligned_bytes, on_cpu, packed_weights, pointer
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.schemas import library
from elmo_fast.ops.weight_cache import Tensors, emptied

NO_EPILOGUE, _HIGHWAY = 0, 2


def linear(x, weights, packed, outputs, precision, bounded, epilogue=NO_EPILOGUE):
    x, y = x.contiguous(), x.new_empty(len(x), outputs)
    native_module()[0].linear_forward(
        input=x.shape[1], output=outputs, epilogue=epilogue, precision=PRECISIONS.index(precision),
        packed=packed.data_ptr(), packed_size=packed.numel(), x=x.data_ptr(), rows=len(x), x_stride=x.shape[1],
        y=y.data_ptr(), y_stride=outputs, threads=torch.get_num_threads())
    return y


def highway(x, weights, packed, precision, bounded):
    return linear(x, weights, packed, x.shape[1], precision, bounded, _HIGHWAY)


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None, precision: str) -> torch.Tensor:
    """Packed weights of `linear` in a precision that `runs_precision`, uint8."""
    return packed_weights((weight, bias), f"linear {precision}", lambda tensors: pack(tensors, NO_EPILOGUE, precision))


def packed_highway(w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor, b_transform: torch.Tensor,
                   precision: str) -> torch.Tensor:
    """Packed weights of `highway` in a precision that `runs_precision`, uint8."""
    return packed_weights((w_carry, b_carry, w_transform, b_transform), f"highway {precision}",
                          lambda tensors: pack(tensors, _HIGHWAY, precision))


def drop_linear(weight, bias, precision: str) -> list[torch.Tensor | None]:
    """Pack a product; weight and bias, the matrix emptied."""
    packed_linear(weight, bias, on_cpu(precision))
    return emptied([weight, bias])


def drop_highway(w_carry, b_carry, w_transform, b_transform, precision: str) -> list[torch.Tensor | None]:
    """Pack a highway layer; its four tensors, the matrices emptied."""
    packed_highway(w_carry, b_carry, w_transform, b_transform, on_cpu(precision))
    return emptied([w_carry, b_carry, w_transform, b_transform])


def pack(tensors: Tensors, epilogue: int, precision: str) -> torch.Tensor:
    """Contiguous fp32 weights and biases, in the order of `linear` or `highway`, as the engine reads them."""
    module, shape = native_module()[0], (*tensors[0].shape, epilogue, PRECISIONS.index(precision))
    packed = aligned_bytes(module.linear_packed_size(*shape))
    pointers = [pointer(tensor) for tensor in tensors] + [0] * (4 - len(tensors))
    module.linear_pack(*shape, *pointers, packed.data_ptr(), packed.numel())
    return packed


library.impl("linear", linear, "CPU")
library.impl("highway", highway, "CPU")
