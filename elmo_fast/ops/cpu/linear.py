"""The C++ engine's product with a bias, and the highway layer, which is one with an epilogue.

Registered with `torch.library` as `torch.ops.elmo_fast.linear`.
"""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import aligned_bytes, on_cpu, packed_weights, pointer
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.weight_cache import emptied

NO_EPILOGUE, _HIGHWAY = 0, 2

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_library.define("linear(Tensor x, Tensor packed, int inputs, int outputs, int epilogue, int precision=0) -> Tensor")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *,
           precision: str = "highest") -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] or None -> x W + b [N, M]; a precision that `runs_precision`."""
    inputs, outputs = weight.shape
    packed = packed_linear(weight, bias, precision)
    return torch.ops.elmo_fast.linear(x.contiguous(), packed, inputs, outputs, NO_EPILOGUE, PRECISIONS.index(precision))


def highway(x: torch.Tensor, w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
            b_transform: torch.Tensor, *, precision: str = "highest") -> torch.Tensor:
    """As `reference.highway`, the products in a precision that `runs_precision`, the rest in fp32."""
    size = len(w_carry)
    packed = packed_highway(w_carry, b_carry, w_transform, b_transform, precision)
    return torch.ops.elmo_fast.linear(x.contiguous(), packed, size, size, _HIGHWAY, PRECISIONS.index(precision))


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None, precision: str) -> torch.Tensor:
    """Packed weights of `linear`, uint8."""
    shape = *weight.shape, NO_EPILOGUE, PRECISIONS.index(precision)
    return packed_weights((weight, bias), f"linear {precision}", lambda each: pack_linear(*shape, each))


def packed_highway(w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
                   b_transform: torch.Tensor, precision: str) -> torch.Tensor:
    """Packed weights of `highway`, uint8."""
    shape = *w_carry.shape, _HIGHWAY, PRECISIONS.index(precision)
    return packed_weights((w_carry, b_carry, w_transform, b_transform), f"highway {precision}",
                          lambda each: pack_linear(*shape, each))


def drop_linear(weight, bias, precision: str) -> list[torch.Tensor | None]:
    """Pack a product; weight and bias, the matrix emptied."""
    packed_linear(weight, bias, on_cpu(precision))
    return emptied([weight, bias])


def drop_highway(w_carry, b_carry, w_transform, b_transform, precision: str) -> list[torch.Tensor | None]:
    """Pack a highway layer; its four tensors, the matrices emptied."""
    packed_highway(w_carry, b_carry, w_transform, b_transform, on_cpu(precision))
    return emptied([w_carry, b_carry, w_transform, b_transform])


def pack_linear(inputs: int, outputs: int, epilogue: int, precision: int, tensors) -> torch.Tensor:
    """Contiguous fp32 weights and biases, in the order of `linear` or `highway`, as the engine reads them."""
    module = native_module()[0]
    packed = aligned_bytes(module.linear_packed_size(inputs, outputs, epilogue, precision))
    pointers = [pointer(each) for each in tensors] + [0] * (4 - len(tensors))
    module.linear_pack(inputs, outputs, epilogue, precision, *pointers, packed.data_ptr(), packed.numel())
    return packed


def _run_linear(x, packed, inputs, outputs, epilogue, precision=0):
    y = x.new_empty(len(x), outputs)
    native_module()[0].linear_forward(
        input=inputs, output=outputs, epilogue=epilogue, precision=precision, packed=packed.data_ptr(),
        packed_size=packed.numel(), x=x.data_ptr(), rows=len(x), x_stride=inputs, y=y.data_ptr(), y_stride=outputs,
        threads=torch.get_num_threads())
    return y


def _fake_linear(x, packed, inputs, outputs, epilogue, precision=0):
    return x.new_empty(x.shape[0], outputs)


_library.impl("linear", _run_linear, "CPU")
torch.library.register_fake("elmo_fast::linear", _fake_linear, lib=_library)
