"""The char-CNN's fake implementation, for `torch.compile`, and its gradient.

The op returns values [N, filters] and, with `save` on the CPU, the number of the window that each value comes from.
"""

import torch

from elmo_fast.engine.precision import operands_of
from elmo_fast.ops.char_cnn.arguments import CharCnnArguments
from elmo_fast.ops.library import gradient_memory, needed_only, register, register_backward
from elmo_fast.ops.numerics import type_of


def _fake(*arguments):
    call = CharCnnArguments(*arguments)
    shape = call.ids.shape[0], sum(weight.shape[-1] for weight in call.weights)
    values = call.char_embed.new_empty(shape, dtype=type_of(operands_of(call.precision, call.bounded)))
    return values, call.ids.new_empty(shape if call.save else 0, dtype=torch.int32)


def _fake_backward(grad, values, picks, needed, *arguments):
    return gradient_memory(CharCnnArguments(*arguments).floats, needed)


def _save(ctx, inputs, output):
    call = CharCnnArguments(*inputs)
    ctx.call = call._replace(ids=None, char_embed=None, weights=[], biases=[])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, call.ids, call.char_embed, *call.weights, *call.biases)


def _gradient(ctx, grad, _):
    values, picks, ids, char_embed, *parts = ctx.saved_tensors
    count = len(parts) // 2
    needed = CharCnnArguments(*ctx.needs_input_grad).floats
    none = CharCnnArguments(*[None] * len(ctx.call))._replace(weights=[None] * count, biases=[None] * count)
    if grad is None:
        return none
    call = ctx.call._replace(ids=ids, char_embed=char_embed, weights=parts[:count], biases=parts[count:])
    grads = torch.ops.elmo_fast.char_cnn_backward(grad, values, picks, needed, *call)
    char_embed, *parts = needed_only(grads, needed)
    return none._replace(char_embed=char_embed, weights=parts[:count], biases=parts[count:])


register("char_cnn", _fake, _gradient, _save)
register_backward("char_cnn", _fake_backward)
