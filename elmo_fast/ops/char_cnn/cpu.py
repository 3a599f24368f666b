"""The C++ engine's char-CNN and its gradient: fp32 at every precision."""

from typing import NamedTuple

import torch

from elmo_fast.engine.backend import native_module
from elmo_fast.engine.native import threads
from elmo_fast.ops.char_cnn.activations import ACTIVATIONS
from elmo_fast.ops.char_cnn.arguments import CharCnnArguments
from elmo_fast.ops.char_cnn.pytorch import PADDING_ID
from elmo_fast.ops.char_cnn.reference import with_zero_row
from elmo_fast.ops.cpu import pointer
from elmo_fast.ops.library import library, no_gradient
from elmo_fast.ops.weight_cache import Tensors


class Filters(NamedTuple):
    """The engine's operands, contiguous fp32: the table [262, E] whose row 0 is zeros, weights, and all biases [n]."""

    table: torch.Tensor
    weights: list[torch.Tensor]
    biases: torch.Tensor


def packed_filters(tensors: Tensors) -> Filters:
    """The operands from char_embed, every weight, and every bias."""
    char_embed, *parts = (tensor.float().contiguous() for tensor in tensors)
    count = len(parts) // 2
    return Filters(with_zero_row(char_embed), parts[:count], torch.cat(parts[count:]))


def forward(*arguments):
    call = CharCnnArguments(*arguments)
    return filter_values(call.ids, packed_filters(call.floats), call.activation, call.save)


def filter_values(ids: torch.Tensor, filters: Filters, activation: str,
                  save: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Values [N, filters] for ids [N, C]; with `save` also the window that each comes from, int32, otherwise [0]."""
    ids, biases, module = _contiguous(ids), filters.biases, native_module()[0]
    values = biases.new_empty(len(ids), len(biases))
    picks = torch.empty(values.shape if save else 0, dtype=torch.int32, device="cpu")
    module.char_cnn_forward(**_call(ids, filters), biases=biases.data_ptr(), activation=module.activations[activation],
                            values=values.data_ptr(), picks=picks.data_ptr() if save else 0)
    return values, picks


def backward(grad, values, picks, needed, *arguments):
    call = CharCnnArguments(*arguments)
    grad = ACTIVATIONS[call.activation].slope(grad.contiguous(), values).contiguous()
    ids, filters = _contiguous(call.ids), packed_filters(call.floats)
    grads = [torch.empty_like(tensor) if wanted else None
             for tensor, wanted in zip((filters.table, *filters.weights), needed)]
    native_module()[0].char_cnn_backward(**_call(ids, filters, grads[1:]), grad_values=grad.data_ptr(),
                                         picks=picks.data_ptr(), grad_table=pointer(grads[0]))
    if needed[0]:
        grads[0] = grads[0][1:].clone()
    bias_grads = grad.sum(0).split([len(bias) for bias in call.biases])
    grads += [part.clone() if wanted else None for part, wanted in zip(bias_grads, needed[len(grads) :])]
    return [no_gradient(grad) if gradient is None else gradient for gradient in grads]


def _contiguous(ids: torch.Tensor) -> torch.Tensor:
    return ids.to(torch.int32).contiguous()


def _call(ids: torch.Tensor, filters: Filters, grads: Tensors | None = None) -> dict:
    """The arguments shared by forward and backward, as pointers: the tensors must outlive the call."""
    table, weights, _ = filters
    banks, first = [], 0
    for weight, grad in zip(weights, grads or [None] * len(weights)):
        banks.append((weight.shape[1], weight.shape[-1], first, weight.data_ptr(), pointer(grad)))
        first += weight.shape[-1]
    return dict(ids=ids.data_ptr(), tokens=ids.shape[0], characters=ids.shape[1], padding=PADDING_ID,
                table=table.data_ptr(), table_rows=table.shape[0], dim=table.shape[1], banks=banks,
                threads=threads())


library.impl("char_cnn", forward, "CPU")
library.impl("char_cnn_backward", backward, "CPU")
