"""A layer of the two-direction projected LSTM: checks the operands and runs the selected backend."""

import dataclasses
from typing import Any

import torch

# The first three imports register implementations.
import elmo_fast.ops.projected_lstm.cpu
import elmo_fast.ops.projected_lstm.cuda.lstm
import elmo_fast.ops.projected_lstm.gradients  # noqa: F401
from elmo_fast.arguments import shown
from elmo_fast.engine.backend import effective_precision
from elmo_fast.engine.precision import check_gradients
from elmo_fast.engine.schedule import Schedule
from elmo_fast.ops.backend import needs_gradient, resolve
from elmo_fast.ops.device import to_device
from elmo_fast.ops.linear import check_shape
from elmo_fast.ops.numerics import full_precision
from elmo_fast.ops.projected_lstm import pytorch, reference
from elmo_fast.ops.projected_lstm.arguments import LstmCall
from elmo_fast.ops.projected_lstm.reference import LstmWeights, State


def projected_lstm(
    inputs: torch.Tensor, rows: torch.Tensor | None, schedule: Schedule, state: State,
    weights: tuple[LstmWeights, LstmWeights], *, backend: str = "auto", **settings: Any,
) -> tuple[torch.Tensor, State]:
    """See `reference.projected_lstm`; `backend` as in `elmo_fast.ops.backend`. 16-bit operands are converted to fp32.

    `settings` are further fields of `LstmCall`: clips, `initial_state`, `precision`, `bounded`. `rows` may be on the
    host. `bounded` says that `inputs` are outputs of such a layer with the same `proj_clip`, so that fp16 on a GPU need
    not scale them. The native engines compute in `precision` if this machine supports it; the other backends follow
    `elmo_fast.ops.numerics.numerics`. When gradients are recorded, the C++ engine computes in `highest`. Native
    backends have no second-order gradients.
    """
    call = LstmCall(full_precision(inputs), rows, schedule, tuple(map(full_precision, state)), weights, **settings)
    if call.initial_state is not None:
        call = dataclasses.replace(call, initial_state=tuple(map(full_precision, call.initial_state)))
    check(call)
    save = needs_gradient(call.tensors)
    check_gradients(call.precision, save)
    chosen = resolve("projected_lstm", backend, *call.tensors, unsupported=unsupported_weights(weights))
    if chosen == "native":
        if inputs.device.type == "cpu":
            call = dataclasses.replace(call, precision="highest" if save else effective_precision(call.precision))
        out, h, c, _ = torch.ops.elmo_fast.projected_lstm(*call.arguments(save))
        return out, (h, c)
    call = dataclasses.replace(call, rows=None if rows is None else to_device(rows, inputs.device),
                               weights=tuple(tuple(map(full_precision, direction)) for direction in weights))
    if chosen == "torch":
        return pytorch.projected_lstm(call)
    return reference.projected_lstm(call.inputs, call.rows, schedule, call.state, call.weights,
                                    cell_clip=call.cell_clip, proj_clip=call.proj_clip,
                                    initial_state=call.initial_state)


def unsupported_weights(weights: tuple[LstmWeights, LstmWeights]) -> str | None:
    """Name what the native engines do not support in weights, or return None."""
    if any(w_p is not None and w_p.shape[0] == w_p.shape[1] for _, _, w_p in weights):
        return "a projection to as many values as there are cells"
    return None


def check(call: LstmCall) -> None:
    """Raise `ValueError`, naming the operand, unless all shapes match (see `reference.projected_lstm`)."""
    dim, projection, width = _check_weights(call.weights)
    slots, packed_rows = call.schedule.slots.size, int(call.schedule.batch_sizes.sum())
    check_shape("state[0]", call.state[0], (slots, 2 * projection))
    check_shape("state[1]", call.state[1], (slots, 2 * dim))
    if call.initial_state is not None:
        check_shape("initial_state[0]", call.initial_state[0], (2 * projection,))
        check_shape("initial_state[1]", call.initial_state[1], (2 * dim,))
    if call.rows is None:
        check_shape("inputs", call.inputs, (packed_rows, 2 * width))
    else:
        check_shape("inputs", call.inputs, (call.inputs.shape[0], width))
        rows, last = call.rows, len(call.inputs) - 1
        if rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"rows: expected int32 or int64, got {rows.dtype}")
        if tuple(rows.shape) != (2, packed_rows):
            raise ValueError(f"rows: expected shape {(2, packed_rows)}, got {tuple(rows.shape)}")
        if rows.device.type == "cpu" and rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) <= last):
            raise ValueError(f"rows: expected rows of inputs, 0 to {last}, got {int(rows.min())} to {int(rows.max())}")
    for name, clip in (("cell_clip", call.cell_clip), ("proj_clip", call.proj_clip)):
        if clip is not None and not clip > 0:
            raise ValueError(f"{name}: expected a number above 0, or None for no clipping, got {shown(clip)}")


def _check_weights(weights: tuple[LstmWeights, LstmWeights]) -> tuple[int, int, int]:
    """Sizes D, P and I of a layer; `ValueError` unless the weights of both directions have the same shapes."""
    w, b, w_p = weights[0]
    dim = b.shape[0] // 4 if b.dim() == 1 else 0
    projection = dim if w_p is None else w_p.shape[-1]
    width = w.shape[0] - projection
    for direction, (w, b, w_p) in enumerate(weights):
        check_shape(f"weights[{direction}] B", b, (4 * dim,))
        check_shape(f"weights[{direction}] W", w, (width + projection, 4 * dim))
        if (w_p is None) != (weights[0][2] is None):
            raise ValueError("weights: expected W_P in both directions or in neither, got one direction")
        if w_p is not None:
            check_shape(f"weights[{direction}] W_P", w_p, (dim, projection))
    return dim, projection, width
