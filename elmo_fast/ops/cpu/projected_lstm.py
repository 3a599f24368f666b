"""The C++ engine's projected LSTM: the forward, and in `highest` the gradients.

A forward that saves for the gradients has the bits of the one that does not; gradients have the same bits on any number
of threads.
"""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import aligned_bytes, on_cpu, packed_weights, pointer
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.reference import LstmWeights, restore
from elmo_fast.ops.schemas import library, lstm_gradients
from elmo_fast.ops.weight_cache import emptied
from elmo_fast.ops.weight_snapshot import Tensors


def forward(inputs, rows, slots, batch_sizes, sequence_starts, h, c, weights, initial_h, initial_c, width, cell_clip,
            proj_clip, packed, precomputed, precision, bounded, save):
    module, sizes = native_module()[0], (width, c.shape[1] // 2, h.shape[1] // 2)
    operands = _Operands(inputs, rows, slots, batch_sizes, sequence_starts, h, c, initial_h, initial_c, packed)
    call, out = operands.arguments(*sizes, cell_clip, proj_clip), h.new_empty(operands.count, h.shape[1])
    outputs = {"output": out.data_ptr(), "out_rows": operands.numbers.data_ptr()}
    saved = h.new_empty(module.lstm_saved_size(*sizes, operands.count) if save else 0, dtype=torch.uint8)
    if save:
        module.lstm_forward_saving(**call, **outputs, saved=saved.data_ptr(), saved_size=saved.numel())
    else:
        module.lstm_forward(**call, **outputs, output_rows=operands.count, precision=PRECISIONS.index(precision),
                            precomputed=precomputed)
    return out, _in_caller_order(operands.h, slots), _in_caller_order(operands.c, slots), saved


def backward(grad_out, grad_h, grad_c, saved, inputs, rows, slots, batch_sizes, sequence_starts, h, c, weights,
             initial_h, initial_c, width, cell_clip, proj_clip, needed):
    module, sizes = native_module()[0], (width, c.shape[1] // 2, h.shape[1] // 2)
    parts, contiguous = len(weights) // 2, [weight.contiguous() for weight in weights]
    # as gradients read the weights; not cached, since an optimizer edits them before the next call
    packed = aligned_bytes(module.lstm_backward_packed_size(*sizes))
    matrices, _, *projections = ([pointer(weight) for weight in contiguous[k::parts]] for k in range(parts))
    module.lstm_backward_pack(*sizes, matrices, projections[0] if projections else [0, 0], packed.data_ptr(),
                              packed.numel())
    operands = _Operands(inputs, rows, slots, batch_sizes, sequence_starts, h, c, initial_h, initial_c, packed)
    call = operands.arguments(*sizes, cell_clip, proj_clip)
    grads = lstm_gradients(inputs, h, c, weights, initial_h, initial_c, needed)
    for k, given in ((1, grad_h), (2, grad_c)):
        grads[k] = torch.zeros_like(grads[k]) if given is None else _in_slot_order(given, slots)
    grad_out = h.new_zeros(operands.count, h.shape[1]) if grad_out is None else grad_out.contiguous()
    by_direction = inputs.new_zeros(2, *inputs.shape) if rows is not None and needed[0] else grads[0]
    half = 4 * (inputs.shape[1] // 2 if rows is None else inputs.numel())  # bytes from one direction to the other
    of_inputs, of_weights = pointer(by_direction), [pointer(grad) for grad in grads[3:-2]]
    pairs = [of_weights[k::parts] for k in range(parts)] + [[0, 0]] * (3 - parts)
    scratch = torch.empty(module.lstm_backward_scratch_size(**call), dtype=torch.uint8)
    module.lstm_backward(
        **call, saved=saved.data_ptr(), saved_size=saved.numel(), grad_output=grad_out.data_ptr(),
        grad_h=grads[1].data_ptr(), grad_c=grads[2].data_ptr(), grad_inputs=[of_inputs, of_inputs and of_inputs + half],
        grad_weights=pairs[0], grad_biases=pairs[1], grad_projections=pairs[2], grad_initial_h=grads[-2].data_ptr(),
        grad_initial_c=grads[-1].data_ptr(), scratch=scratch.data_ptr(), scratch_size=scratch.numel())
    if rows is not None and needed[0]:
        grads[0] = by_direction[0] + by_direction[1]
    return [grads[0], *(_in_caller_order(grad, slots) for grad in grads[1:3]), *grads[3:]]


class _Operands:
    """Contiguous tensors whose addresses forward and backward pass on; `h` and `c` in the order of the slots."""

    def __init__(self, inputs, rows, slots, batch_sizes, sequence_starts, h, c, initial_h, initial_c, packed):
        self.count = inputs.shape[0] if rows is None else rows.shape[1]
        self.numbers = torch.arange(self.count, dtype=torch.int32).expand(2, -1).contiguous()
        self.rows = self.numbers if rows is None else rows.to(torch.int32).contiguous()
        self.inputs, self.split_input = inputs.contiguous(), rows is None
        self.h, self.c = (_in_slot_order(x, slots) for x in (h, c))
        self.packed, self.batch_sizes, self.sequence_starts = packed, batch_sizes, sequence_starts
        self.initial_h, self.initial_c = (None if x is None else x.contiguous() for x in (initial_h, initial_c))

    def arguments(self, width: int, dim: int, projection: int, cell_clip: float, proj_clip: float) -> dict:
        """Arguments shared by forward and backward; valid as long as this object."""
        return dict(
            input=width, dim=dim, projection=projection, packed=self.packed.data_ptr(), packed_size=self.packed.numel(),
            inputs=self.inputs.data_ptr(), input_rows=len(self.inputs), split_input=self.split_input,
            steps=len(self.batch_sizes), batch_sizes=self.batch_sizes.data_ptr(), packed_rows=self.count,
            rows=self.rows.data_ptr(), sequence_start=pointer(self.sequence_starts), initial_h=pointer(self.initial_h),
            initial_c=pointer(self.initial_c), slots=len(self.h), h=self.h.data_ptr(), c=self.c.data_ptr(),
            cell_clip=cell_clip, proj_clip=proj_clip, threads=torch.get_num_threads())


def _in_slot_order(x: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
    """A contiguous copy of state or its gradient, which the engine updates in place."""
    return x.clone(memory_format=torch.contiguous_format) if slots is None else x[slots]


def _in_caller_order(x: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
    return x if slots is None else restore(x, slots)


def packed_lstm(weights: tuple[LstmWeights, LstmWeights], precision: str, keep: bool = True) -> torch.Tensor:
    """Packed weights of a layer in a precision that `runs_precision`, uint8."""
    return packed_weights((*weights[0], *weights[1]), f"lstm {precision}", lambda tensors: pack(tensors, precision),
                          keep)


def drop_lstm(weights: tuple[LstmWeights, LstmWeights], precision: str) -> list[torch.Tensor | None]:
    """Pack one layer; its six tensors in the order given, the matrices emptied."""
    packed_lstm(weights, on_cpu(precision))
    return emptied([*weights[0], *weights[1]])


def pack(tensors: Tensors, precision: str) -> torch.Tensor:
    """Contiguous fp32 (W, B, W_P or None) of both directions as the engine reads them."""
    module, (w, b, w_p) = native_module()[0], tensors[:3]
    projection = len(b) // 4 if w_p is None else w_p.shape[1]
    shape = len(w) - projection, len(b) // 4, projection, PRECISIONS.index(precision)
    packed = aligned_bytes(module.lstm_packed_size(*shape))
    pairs = [[pointer(tensor) for tensor in tensors[k::3]] for k in range(3)]
    module.lstm_pack(*shape, *pairs, packed.data_ptr(), packed.numel())
    return packed


library.impl("projected_lstm", forward, "CPU")
library.impl("projected_lstm_backward", backward, "CPU")
