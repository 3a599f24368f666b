"""The C++ engine's product with a bias, and the highway layer, which is a product with an epilogue."""

from collections.abc import Callable

import torch

from elmo_fast.engine.backend import native_module, number_of
from elmo_fast.engine.native import threads
from elmo_fast.ops.cpu import contiguous, pointer
from elmo_fast.ops.library import library
from elmo_fast.ops.linear.arguments import ProductArguments


def _op(epilogue: str) -> Callable[..., torch.Tensor]:
    """The implementation of the op with an epilogue: `none` or `highway`."""
    def run(*arguments):
        call, module = ProductArguments(*arguments), native_module()[0]
        x, weights = call.x.contiguous(), contiguous(call.weights)
        y = x.new_empty(len(x), weights[0].shape[1])
        module.linear_forward(
            input=x.shape[1], output=y.shape[1], epilogue=module.epilogues[epilogue],
            precision=number_of(call.precision), weights=[*map(pointer, weights), *[0] * (4 - len(weights))],
            x=x.data_ptr(), rows=len(x), y=y.data_ptr(), threads=threads())
        return y
    return run


library.impl("linear", _op("none"), "CPU")
library.impl("highway", _op("highway"), "CPU")
