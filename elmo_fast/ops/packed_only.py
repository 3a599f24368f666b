"""Weights that live on only as the native engine packed them: half the memory, for inference on the CPU."""

import torch
from torch import nn

from elmo_fast.ops import native_cpu
from elmo_fast.ops.native_cpu import on_cpu
from elmo_fast.ops.packing import hand_over
from elmo_fast.ops.reference import LstmWeights


def drop_lstm(weights: tuple[LstmWeights, LstmWeights], precision: str) -> list[torch.Tensor | None]:
    """Pack one layer and return its six tensors with the matrices emptied, in the order given."""
    native_cpu.packed_lstm(weights, on_cpu(precision))
    return _emptied([*weights[0], *weights[1]])


def drop_highway(w_carry, b_carry, w_transform, b_transform, precision: str) -> list[torch.Tensor | None]:
    """Pack a highway layer and return its four tensors with the matrices emptied."""
    native_cpu.packed_highway(w_carry, b_carry, w_transform, b_transform, on_cpu(precision))
    return _emptied([w_carry, b_carry, w_transform, b_transform])


def drop_linear(weight, bias, precision: str) -> list[torch.Tensor | None]:
    """Pack a product and return weight and bias with the matrix emptied."""
    native_cpu.packed_linear(weight, bias, on_cpu(precision))
    return _emptied([weight, bias])


def _emptied(tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    emptied = [nn.Parameter(torch.empty_like(each, device="meta"), requires_grad=False)
               if each is not None and each.dim() == 2 else each for each in tensors]
    hand_over(tensors, emptied)
    return emptied
