"""Fake implementation (shapes only, for `torch.compile`) and autograd formula of the projected LSTM.

The op returns outputs [S, 2 P], h and c in the caller's order and, with `save`, the tensor saved for backward, uint8.
"""

import torch

from elmo_fast.engine.backend import native_module
from elmo_fast.ops.library import needed_only, register, register_backward
from elmo_fast.ops.projected_lstm.arguments import LstmArguments, LstmGradients, memory_for_gradients
from elmo_fast.ops.projected_lstm.cuda import training

_TENSORS = ("inputs", "rows", "slots", "batch_sizes", "sequence_starts", "h", "c", "initial_h", "initial_c")


def _fake(*arguments):
    call = LstmArguments(*arguments)
    saved = _saved_size(call) if call.save else 0
    shapes = (call.packed_rows, call.h.shape[1]), call.h.shape, call.c.shape
    return *(call.h.new_empty(shape, dtype=torch.float32) for shape in shapes), call.h.new_empty(saved,
                                                                                                 dtype=torch.uint8)


def _saved_size(call: LstmArguments) -> int:
    if call.inputs.device.type == "cuda":
        return training.saved_size(call)
    module, (width, dim, projection) = native_module()[0], call.sizes
    first, second = (module.lstm_saved_size(int(width), dim, projection, rows) for rows in (0, 1))
    return first + (second - first) * call.packed_rows  # linear in the number of rows, which may be symbolic


def _fake_backward(grad_out, grad_h, grad_c, saved, needed, *arguments):
    return memory_for_gradients(LstmArguments(*arguments), LstmGradients.unflatten(needed)).flatten()


def _save(ctx, inputs, output):
    call, (*_, saved) = LstmArguments(*inputs), output
    ctx.call = call._replace(weights=[], **dict.fromkeys(_TENSORS))
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(saved, *(getattr(call, name) for name in _TENSORS), *call.weights)


def _gradient(ctx, grad_out, grad_h, grad_c, _):
    saved, inputs, rows, slots, batch_sizes, sequence_starts, h, c, initial_h, initial_c, *weights = ctx.saved_tensors
    needed = [bool(wanted) for wanted in LstmGradients.of(ctx.needs_input_grad).flatten()]
    computed = torch.ops.elmo_fast.projected_lstm_backward(grad_out, grad_h, grad_c, saved, needed, *ctx.call._replace(
        inputs=inputs, rows=rows, slots=slots, batch_sizes=batch_sizes, sequence_starts=sequence_starts, h=h, c=c,
        weights=weights, initial_h=initial_h, initial_c=initial_c))
    gradients = LstmGradients.unflatten(needed_only(computed, needed))
    return LstmArguments(*[None] * len(ctx.call))._replace(**gradients._asdict())


register("projected_lstm", _fake, _gradient, _save)
register_backward("projected_lstm", _fake_backward)
