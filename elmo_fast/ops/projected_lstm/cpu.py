"""The C++ engine's projected LSTM: the forward, and in `highest` the gradients.

A forward that saves for the gradients is bitwise equal to one that does not. Gradients are bitwise equal for any number
of threads.
"""

import numpy as np
import torch

from elmo_fast.engine.backend import native_module, number_of
from elmo_fast.engine.native import threads
from elmo_fast.ops.cpu import contiguous, pointer
from elmo_fast.ops.library import library
from elmo_fast.ops.projected_lstm.arguments import LstmArguments, LstmGradients, memory_for_gradients


def forward(*arguments):
    call, module = LstmArguments(*arguments), native_module()[0]
    operands, count = _Operands(call), call.packed_rows
    out = call.h.new_empty(count, call.h.shape[1])
    outputs = _halves_at(out)
    saved = call.h.new_empty(module.lstm_saved_size(*call.sizes, count) if call.save else 0, dtype=torch.uint8)
    weights, biases, projections = operands.weights
    module.lstm_forward(**operands.arguments(), weights=weights, biases=biases, projections=projections,
                        outputs=outputs.ctypes.data, precision=number_of(call.precision),
                        saved=saved.data_ptr() if call.save else 0)
    return out, *(in_caller_order(x, operands.slots) for x in (operands.h, operands.c)), saved


def _halves_at(rows: torch.Tensor) -> np.ndarray:
    """Addresses of both halves of rows float32 [S, 2 P]: int64 [2, S]."""
    width = rows.shape[1]
    return rows.data_ptr() + 4 * (np.array([[0], [width // 2]]) + width * np.arange(len(rows)))


def backward(grad_out, grad_h, grad_c, saved, needed, *arguments):
    call, module, needed = LstmArguments(*arguments), native_module()[0], LstmGradients.unflatten(needed)
    operands, inputs = _Operands(call), call.inputs
    common, grads = operands.arguments(), memory_for_gradients(call, needed)
    grads = grads._replace(**{
        name: torch.zeros_like(getattr(grads, name)) if given is None else in_slot_order(given, operands.slots)
        for name, given in (("h", grad_h), ("c", grad_c))})
    grad_out = call.h.new_zeros(call.packed_rows, call.h.shape[1]) if grad_out is None else grad_out.contiguous()
    is_split = call.rows is None
    by_direction = grads.inputs if is_split or not needed.inputs else inputs.new_zeros(2, *inputs.shape)
    half = 4 * (inputs.shape[1] // 2 if is_split else inputs.numel())  # bytes between the two directions
    grad_inputs = pointer(by_direction)
    weights, _, projections = operands.weights
    grad_weights, grad_biases, grad_projections = _by_direction(grads.weights)
    module.lstm_backward(
        **common, weights=weights, projections=projections, saved=saved.data_ptr(), saved_size=saved.numel(),
        grad_output=grad_out.data_ptr(), grad_h=grads.h.data_ptr(), grad_c=grads.c.data_ptr(),
        grad_inputs=[grad_inputs, grad_inputs and grad_inputs + half], grad_weights=grad_weights,
        grad_biases=grad_biases, grad_projections=grad_projections,
        grad_initial_h=grads.initial_h.data_ptr(), grad_initial_c=grads.initial_c.data_ptr())
    if not is_split and needed.inputs:
        grads = grads._replace(inputs=by_direction[0] + by_direction[1])
    h, c = (in_caller_order(x, operands.slots) for x in (grads.h, grads.c))
    return grads._replace(h=h, c=c).flatten()


def _by_direction(weights: list[torch.Tensor]) -> list[list[int]]:
    """Group addresses of `LstmArguments.weights` into (forward, backward) pairs: W, B and W_P, 0 if not present."""
    parts = len(weights) // 2
    return [[pointer(weight) for weight in weights[k::parts]] if k < parts else [0, 0] for k in range(3)]


class _Operands:
    """Contiguous tensors whose addresses are passed to the engine; `h` and `c` are in the order of the slots."""

    def __init__(self, call: LstmArguments):
        self.call = call
        self.contiguous_weights = contiguous(call.weights)
        self.weights = _by_direction(self.contiguous_weights)
        self.rows = None if call.rows is None else call.rows.to(torch.int32).contiguous()
        self.inputs = call.inputs.contiguous()
        self.slots = None if call.slots is None else call.slots.numpy()
        self.h, self.c = (in_slot_order(x, self.slots) for x in (call.h, call.c))
        self.initial_h, self.initial_c = (None if x is None else x.contiguous()
                                          for x in (call.initial_h, call.initial_c))

    def arguments(self) -> dict:
        """Arguments shared by forward and backward; valid while this object lives."""
        call, (width, dim, projection) = self.call, self.call.sizes
        return dict(
            input=width, dim=dim, projection=projection, inputs=self.inputs.data_ptr(),
            input_rows=len(self.inputs), rows=pointer(self.rows),
            steps=len(call.batch_sizes), batch_sizes=call.batch_sizes.data_ptr(), packed_rows=call.packed_rows,
            sequence_start=pointer(call.sequence_starts), initial_h=pointer(self.initial_h),
            initial_c=pointer(self.initial_c), slots=len(self.h), h=self.h.data_ptr(), c=self.c.data_ptr(),
            cell_clip=call.cell_clip, proj_clip=call.proj_clip, threads=threads())


def in_slot_order(x: torch.Tensor, slots: np.ndarray | None) -> torch.Tensor:
    """A contiguous copy of state or its gradient, which the engine updates in place."""
    values = x.detach().numpy()
    return torch.from_numpy(np.array(values, order="C") if slots is None else values.take(slots, 0))


def in_caller_order(x: torch.Tensor, slots: np.ndarray | None) -> torch.Tensor:
    """The inverse of `in_slot_order`."""
    return x if slots is None else torch.from_numpy(x.numpy().take(np.argsort(slots), 0))


library.impl("projected_lstm", forward, "CPU")
library.impl("projected_lstm_backward", backward, "CPU")
