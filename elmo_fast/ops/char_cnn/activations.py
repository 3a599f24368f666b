"""The table of the char-CNN's activations; `elmo_fast.arguments.ACTIVATIONS` lists their names without torch.

The Triton kernel implements them separately, in kernels/char_cnn.py.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch


class Activation(NamedTuple):
    """An activation: `apply`, `apply_` in place, and `slope`(gradient, value), the gradient of the operand.

    `largest` bounds the absolute value of the result, which never exceeds that of the operand.
    """

    apply: Callable[[torch.Tensor], torch.Tensor]
    apply_: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    largest: float


ACTIVATIONS = {
    "relu": Activation(torch.relu, torch.relu_,
                       lambda grad, value: torch.ops.aten.threshold_backward(grad, value, 0), math.inf),
    "tanh": Activation(torch.tanh, torch.tanh_, torch.ops.aten.tanh_backward, 1.0)}
