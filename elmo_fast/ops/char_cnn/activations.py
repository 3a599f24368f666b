"""The activations of the char-CNN, a row each; `elmo_fast.arguments.ACTIVATIONS` has their names, without torch.

Triton's kernel has its own in kernels/char_cnn.py.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch


class Activation(NamedTuple):
    """`apply` to a tensor, `apply_` in place; `slope`(gradient, value) is the gradient of the operand.

    `largest` bounds the size of a value, which is at most that of the operand in any case.
    """

    apply: Callable[[torch.Tensor], torch.Tensor]
    apply_: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    largest: float


ACTIVATIONS = {
    "relu": Activation(torch.relu, torch.relu_,
                       lambda grad, value: torch.ops.aten.threshold_backward(grad, value, 0), math.inf),
    "tanh": Activation(torch.tanh, torch.tanh_, torch.ops.aten.tanh_backward, 1.0)}
