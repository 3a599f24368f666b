"""The C++ engine's product with a bias, and the highway layer, which is a product with an epilogue."""

from collections.abc import Callable

import torch

from elmo_fast.engine.backend import native_module, number_of
from elmo_fast.engine.native import threads
from elmo_fast.ops.cpu import aligned_bytes, contiguous, pointer
from elmo_fast.ops.library import library
from elmo_fast.ops.linear.arguments import HighwayArguments, LinearArguments
from elmo_fast.ops.weight_cache import Tensors


def product(x: torch.Tensor, packed: torch.Tensor, outputs: int, epilogue: str, precision: str) -> torch.Tensor:
    """The product of x [N, K] with packed weights: float32 [N, outputs]; `epilogue` is `none` or `highway`."""
    module, x, y = native_module()[0], x.contiguous(), x.new_empty(len(x), outputs)
    module.linear_forward(
        input=x.shape[1], output=outputs, epilogue=module.epilogues[epilogue], precision=number_of(precision),
        packed=packed.data_ptr(), packed_size=packed.numel(), x=x.data_ptr(), rows=len(x), y=y.data_ptr(),
        threads=threads())
    return y


def _op(call_type: type, epilogue: str) -> Callable[..., torch.Tensor]:
    """The implementation of the op whose arguments have the type `call_type`."""
    def run(*arguments):
        call = call_type(*arguments)
        return product(call.x, call.packed, call.outputs, epilogue, call.precision)
    return run


def packed_product(tensors: Tensors, precision: str) -> torch.Tensor:
    """Packed weights, uint8, in a precision that the engine supports: of `linear`, or of `highway` for four tensors."""
    epilogue = "highway" if len(tensors) == 4 else "none"
    return pack(contiguous(tensors), epilogue, precision)


def pack(tensors: Tensors, epilogue: str, precision: str) -> torch.Tensor:
    """Pack contiguous fp32 weights and biases, in the order of `linear` or `highway`, for the engine."""
    module = native_module()[0]
    shape = *tensors[0].shape, module.epilogues[epilogue], number_of(precision)
    packed = aligned_bytes(module.linear_packed_size(*shape))
    pointers = [pointer(tensor) for tensor in tensors] + [0] * (4 - len(tensors))
    module.linear_pack(*shape, *pointers, packed.data_ptr(), packed.numel())
    return packed


library.impl("linear", _op(LinearArguments, "none"), "CPU")
library.impl("highway", _op(HighwayArguments, "highway"), "CPU")
