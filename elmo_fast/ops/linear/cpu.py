"""The C++ engine's product with a bias, and the highway layer, which is one with an epilogue."""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import aligned_bytes, effective_precision, number_of, packed_weights, pointer, threads
from elmo_fast.ops.library import library
from elmo_fast.ops.linear.arguments import HighwayArguments, LinearArguments
from elmo_fast.ops.weight_cache import emptied
from elmo_fast.ops.weight_snapshot import Tensors


def linear(*arguments):
    call = LinearArguments(*arguments)
    return _product(call.x, call.packed, call.outputs, call.precision, "none")


def highway(*arguments):
    call = HighwayArguments(*arguments)
    return _product(call.x, call.packed, call.x.shape[1], call.precision, "highway")


def _product(x: torch.Tensor, packed: torch.Tensor, outputs: int, precision: str, epilogue: str) -> torch.Tensor:
    module, x, y = native_module()[0], x.contiguous(), x.new_empty(len(x), outputs)
    module.linear_forward(
        input=x.shape[1], output=outputs, epilogue=module.epilogues[epilogue], precision=number_of(precision),
        packed=packed.data_ptr(), packed_size=packed.numel(), x=x.data_ptr(), rows=len(x), x_stride=x.shape[1],
        y=y.data_ptr(), y_stride=outputs, threads=threads())
    return y


def packed_product(tensors: Tensors, precision: str) -> torch.Tensor:
    """Packed weights in a precision that the engine supports, uint8: of `linear`, or with four tensors of `highway`."""
    name, epilogue = ("highway", "highway") if len(tensors) == 4 else ("linear", "none")
    return packed_weights(tensors, f"{name} {precision}", lambda detached: pack(detached, epilogue, precision))


def drop_product(tensors: Tensors, precision: str) -> list[torch.Tensor | None]:
    """Pack them as `packed_product`; the tensors, matrices emptied."""
    packed_product(tensors, effective_precision(precision))
    return emptied(tensors)


def pack(tensors: Tensors, epilogue: str, precision: str) -> torch.Tensor:
    """Contiguous fp32 weights and biases, in the order of `linear` or `highway`, as the engine reads them."""
    module = native_module()[0]
    shape = *tensors[0].shape, module.epilogues[epilogue], number_of(precision)
    packed = aligned_bytes(module.linear_packed_size(*shape))
    pointers = [pointer(tensor) for tensor in tensors] + [0] * (4 - len(tensors))
    module.linear_pack(*shape, *pointers, packed.data_ptr(), packed.numel())
    return packed


library.impl("linear", linear, "CPU")
library.impl("highway", highway, "CPU")
