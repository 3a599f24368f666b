"""The C++ engine's char-CNN and its gradient: fp32 at every precision.

The engine finds each filter's largest sum; bias and activation follow in torch. A maximum that windows share passes its
gradient to them in equal parts, as the reference's does.
"""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import pointer
from elmo_fast.ops.reference import with_zero_row
from elmo_fast.ops.schemas import library, no_gradient
from elmo_fast.ops.torch.char_cnn import PADDING_ID

_IN_PLACE = {"relu": torch.relu_, "tanh": torch.tanh_}


def forward(ids, char_embed, weights, biases, activation, precision, bounded, save):
    sums = char_embed.new_empty(ids.shape[0], sum(weight.shape[-1] for weight in weights))
    picks = torch.empty(sums.shape if save else 0, dtype=torch.int32)
    ids, table, weights = _contiguous(ids, char_embed, weights)
    native_module()[0].char_cnn_forward(**_call(ids, table, weights), values=sums.data_ptr(),
                                        picks=picks.data_ptr() if save else 0)
    sums += torch.cat(biases)
    return _IN_PLACE[activation](sums), picks


def backward(grad, values, picks, ids, char_embed, weights, biases, activation, precision, bounded, needed):
    slope = torch.ops.aten.threshold_backward if activation == "relu" else torch.ops.aten.tanh_backward
    grad = slope(grad.contiguous(), values, *([0] if activation == "relu" else [])).contiguous()
    ids, table, weights = _contiguous(ids, char_embed, weights)
    grads = [torch.empty_like(tensor) if wanted else None for tensor, wanted in zip((table, *weights), needed)]
    native_module()[0].char_cnn_backward(**_call(ids, table, weights, grads[1:]), grad_values=grad.data_ptr(),
                                         picks=picks.data_ptr(), grad_table=pointer(grads[0]))
    if needed[0]:
        grads[0] = grads[0][1:].clone()
    of_biases = grad.sum(0).split([len(bias) for bias in biases])
    grads += [part.clone() if wanted else None for part, wanted in zip(of_biases, needed[len(grads) :])]
    return [no_gradient(grad) if found is None else found for found in grads]


def _contiguous(ids, char_embed, weights):
    """int32 ids, the table with a row of zeros for no token [262, E], and weights, as the engine reads them."""
    return ids.to(torch.int32).contiguous(), with_zero_row(char_embed), [weight.contiguous() for weight in weights]


def _call(ids, table, weights, grads=None) -> dict:
    """Arguments shared by forward and backward; the tensors must outlive the call."""
    banks, first = [], 0
    for weight, grad in zip(weights, grads or [None] * len(weights)):
        banks.append((weight.shape[1], weight.shape[-1], first, weight.data_ptr(), pointer(grad)))
        first += weight.shape[-1]
    return dict(ids=ids.data_ptr(), tokens=ids.shape[0], characters=ids.shape[1], padding=PADDING_ID,
                table=table.data_ptr(), table_rows=table.shape[0], dim=table.shape[1], banks=banks,
                threads=torch.get_num_threads())


library.impl("char_cnn", forward, "CPU")
library.impl("char_cnn_backward", backward, "CPU")
