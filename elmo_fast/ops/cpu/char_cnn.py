"""The C++ engine's char-CNN, with gradients and without. fp32 at every precision, on the CPU.

Registered with `torch.library` as `torch.ops.elmo_fast.char_cnn_forward`, and for gradients as `.char_cnn_train` and
`.char_cnn_backward`. The numbers of both forwards are the same to the bit; a maximum that windows share passes its
gradient to them in equal parts, as the reference's does. There are no second derivatives: asking for them raises
`RuntimeError`.
"""

from collections.abc import Sequence

import torch

from elmo_fast.ops.backend import native_module, needs_gradient
from elmo_fast.ops.reference import ACTIVATIONS
from elmo_fast.ops.torch.char_cnn import PADDING_ID

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_library.define("char_cnn_forward(Tensor ids, Tensor table, Tensor[] weights) -> Tensor")
_library.define("char_cnn_train(Tensor ids, Tensor table, Tensor[] weights) -> (Tensor, Tensor)")
_library.define("char_cnn_backward(Tensor grad, Tensor picks, Tensor ids, Tensor table, Tensor[] weights, "
                "bool[] needed) -> Tensor[]")


def char_cnn(
    ids: torch.Tensor,
    char_embed: torch.Tensor,
    filters: Sequence[tuple[torch.Tensor, torch.Tensor]],
    activation: str,
) -> torch.Tensor:
    """As `reference.char_cnn` on fp32 operands, differentiable in the embedding and all filters."""
    table = torch.cat([torch.zeros_like(char_embed[:1]), char_embed])  # [262, E]
    weights, biases = zip(*filters)
    operands = ids.to(torch.int32).contiguous(), table, [each.contiguous() for each in weights]
    if needs_gradient((char_embed, *weights, *biases)):
        values, _ = torch.ops.elmo_fast.char_cnn_train(*operands)
    else:
        values = torch.ops.elmo_fast.char_cnn_forward(*operands)
    return ACTIVATIONS[activation](values + torch.cat(biases))


def _call(ids, table, weights, grads=None) -> dict:
    """What forward and backward tell the engine alike; the tensors must outlive the call."""
    banks, first = [], 0
    for weight, grad in zip(weights, grads or [None] * len(weights)):
        filters = weight.shape[-1]
        banks.append((weight.shape[1], filters, first, weight.data_ptr(), 0 if grad is None else grad.data_ptr()))
        first += filters
    return dict(ids=ids.data_ptr(), tokens=ids.shape[0], characters=ids.shape[1], padding=PADDING_ID,
                table=table.data_ptr(), table_rows=table.shape[0], dim=table.shape[1], banks=banks,
                threads=torch.get_num_threads())


def _run(ids, table, weights):
    values = _fake(ids, table, weights)
    native_module()[0].char_cnn_forward(**_call(ids, table, weights), values=values.data_ptr(), picks=0)
    return values


def _fake(ids, table, weights):
    return table.new_empty(ids.shape[0], sum(weight.shape[-1] for weight in weights))


def _train(ids, table, weights):
    values, picks = _fake_train(ids, table, weights)
    native_module()[0].char_cnn_forward(**_call(ids, table, weights), values=values.data_ptr(), picks=picks.data_ptr())
    return values, picks


def _fake_train(ids, table, weights):
    values = _fake(ids, table, weights)
    return values, ids.new_empty(values.shape)


def _keep(ctx, inputs, output) -> None:
    ids, table, weights = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], ids, table, *weights)


def _backward(ctx, grad, _):
    picks, ids, table, *weights = ctx.saved_tensors
    _, table_needed, weights_needed = ctx.needs_input_grad
    needed = [bool(each) for each in (table_needed, *weights_needed)]
    if grad is None:
        return None, None, [None] * len(weights)
    found = torch.ops.elmo_fast.char_cnn_backward(grad.contiguous(), picks, ids, table, weights, needed)
    found = [each if wanted else None for each, wanted in zip(found, needed)]
    return None, found[0], found[1:]


def _run_backward(grad, picks, ids, table, weights, needed):
    found = _fake_backward(grad, picks, ids, table, weights, needed)
    asked = [each if wanted else None for each, wanted in zip(found, needed)]
    native_module()[0].char_cnn_backward(
        **_call(ids, table, weights, asked[1:]), grad_values=grad.data_ptr(), picks=picks.data_ptr(),
        grad_table=0 if asked[0] is None else asked[0].data_ptr())
    return found


def _fake_backward(grad, picks, ids, table, weights, needed):
    return [torch.empty_like(each) if wanted else each.new_empty(0) for each, wanted in zip((table, *weights), needed)]


def _no_second_derivatives(ctx, *_):
    raise RuntimeError("char_cnn: the native backend has no second derivatives; backend='torch' has them")


_library.impl("char_cnn_forward", _run, "CPU")
_library.impl("char_cnn_train", _train, "CPU")
_library.impl("char_cnn_backward", _run_backward, "CPU")
torch.library.register_fake("elmo_fast::char_cnn_forward", _fake, lib=_library)
torch.library.register_fake("elmo_fast::char_cnn_train", _fake_train, lib=_library)
torch.library.register_fake("elmo_fast::char_cnn_backward", _fake_backward, lib=_library)
torch.library.register_autograd("elmo_fast::char_cnn_train", _backward, setup_context=_keep, lib=_library)
torch.library.register_autograd("elmo_fast::char_cnn_backward", _no_second_derivatives, lib=_library)
