"""The C++ engine's product with a bias, and the highway layer, which is one with an epilogue."""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import aligned_bytes, on_cpu, packed_weights, pointer
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.schemas import library
from elmo_fast.ops.weight_cache import emptied
from elmo_fast.ops.weight_snapshot import Tensors

NO_EPILOGUE, HIGHWAY = 0, 2


def linear(x, weights, packed, outputs, precision, bounded, epilogue=NO_EPILOGUE):
    x, y = x.contiguous(), x.new_empty(len(x), outputs)
    native_module()[0].linear_forward(
        input=x.shape[1], output=outputs, epilogue=epilogue, precision=PRECISIONS.index(precision),
        packed=packed.data_ptr(), packed_size=packed.numel(), x=x.data_ptr(), rows=len(x), x_stride=x.shape[1],
        y=y.data_ptr(), y_stride=outputs, threads=torch.get_num_threads())
    return y


def highway(x, weights, packed, precision, bounded):
    return linear(x, weights, packed, x.shape[1], precision, bounded, HIGHWAY)


def packed_product(tensors: Tensors, precision: str) -> torch.Tensor:
    """Packed weights in a precision that `runs_precision`, uint8: of `linear`, or with four tensors of `highway`."""
    name, epilogue = ("highway", HIGHWAY) if len(tensors) == 4 else ("linear", NO_EPILOGUE)
    return packed_weights(tensors, f"{name} {precision}", lambda detached: pack(detached, epilogue, precision))


def drop_product(tensors: Tensors, precision: str) -> list[torch.Tensor | None]:
    """Pack them as `packed_product`; the tensors, matrices emptied."""
    packed_product(tensors, on_cpu(precision))
    return emptied(tensors)


def pack(tensors: Tensors, epilogue: int, precision: str) -> torch.Tensor:
    """Contiguous fp32 weights and biases, in the order of `linear` or `highway`, as the engine reads them."""
    module, shape = native_module()[0], (*tensors[0].shape, epilogue, PRECISIONS.index(precision))
    packed = aligned_bytes(module.linear_packed_size(*shape))
    pointers = [pointer(tensor) for tensor in tensors] + [0] * (4 - len(tensors))
    module.linear_pack(*shape, *pointers, packed.data_ptr(), packed.numel())
    return packed


library.impl("linear", linear, "CPU")
library.impl("highway", highway, "CPU")
