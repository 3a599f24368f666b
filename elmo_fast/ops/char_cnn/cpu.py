"""The C++ engine's char-CNN and its gradient: fp32 at every precision.

The engine finds each filter's largest sum; bias and activation follow in torch. Windows that tie for
the maximum share its gradient equally, as in the reference.
"""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.calling_thread import UNDIVIDED
from elmo_fast.ops.char_cnn.activations import ACTIVATIONS
from elmo_fast.ops.char_cnn.arguments import CharCnnArguments
from elmo_fast.ops.char_cnn.pytorch import PADDING_ID
from elmo_fast.ops.char_cnn.reference import with_zero_row
from elmo_fast.ops.cpu import pointer, threads
from elmo_fast.ops.library import library, no_gradient


def forward(*arguments):
    call = CharCnnArguments(*arguments)
    sums = call.char_embed.new_empty(call.ids.shape[0], sum(weight.shape[-1] for weight in call.weights))
    picks = torch.empty(sums.shape if call.save else 0, dtype=torch.int32)
    ids, table, weights = _contiguous(call)
    native_module()[0].char_cnn_forward(**_call(ids, table, weights), values=sums.data_ptr(),
                                        picks=picks.data_ptr() if call.save else 0)
    biases, activate_ = torch.cat(call.biases), ACTIVATIONS[call.activation].apply_
    for rows in sums.split(max(1, UNDIVIDED // sums.shape[1])):
        activate_(rows.add_(biases))
    return sums, picks


def backward(grad, values, picks, needed, *arguments):
    call = CharCnnArguments(*arguments)
    grad = ACTIVATIONS[call.activation].slope(grad.contiguous(), values).contiguous()
    ids, table, weights = _contiguous(call)
    grads = [torch.empty_like(tensor) if wanted else None for tensor, wanted in zip((table, *weights), needed)]
    native_module()[0].char_cnn_backward(**_call(ids, table, weights, grads[1:]), grad_values=grad.data_ptr(),
                                         picks=picks.data_ptr(), grad_table=pointer(grads[0]))
    if needed[0]:
        grads[0] = grads[0][1:].clone()
    bias_grads = grad.sum(0).split([len(bias) for bias in call.biases])
    grads += [part.clone() if wanted else None for part, wanted in zip(bias_grads, needed[len(grads) :])]
    return [no_gradient(grad) if gradient is None else gradient for gradient in grads]


def _contiguous(call: CharCnnArguments):
    """The engine's operands: int32 ids, the table [262, E] whose row 0 is zeros, and the weights, all contiguous."""
    weights = [weight.contiguous() for weight in call.weights]
    return call.ids.to(torch.int32).contiguous(), with_zero_row(call.char_embed), weights


def _call(ids, table, weights, grads=None) -> dict:
    """The arguments shared by forward and backward, as pointers: the tensors must outlive the call."""
    banks, first = [], 0
    for weight, grad in zip(weights, grads or [None] * len(weights)):
        banks.append((weight.shape[1], weight.shape[-1], first, weight.data_ptr(), pointer(grad)))
        first += weight.shape[-1]
    return dict(ids=ids.data_ptr(), tokens=ids.shape[0], characters=ids.shape[1], padding=PADDING_ID,
                table=table.data_ptr(), table_rows=table.shape[0], dim=table.shape[1], banks=banks,
                threads=threads())


library.impl("char_cnn", forward, "CPU")
library.impl("char_cnn_backward", backward, "CPU")
