"""All layers of a stack on the C++ engine, without gradients: every output is written where the caller wants it."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from elmo_fast.engine.backend import effective_precision, native_module, number_of
from elmo_fast.engine.schedule import Schedule
from elmo_fast.ops.cpu import on_this_machine, threads
from elmo_fast.ops.projected_lstm.arguments import limit
from elmo_fast.ops.projected_lstm.cpu import in_caller_order, in_slot_order, packed_lstm
from elmo_fast.ops.projected_lstm.reference import LstmWeights, State
from elmo_fast.ops.weight_cache import cached


def write_outputs(inputs: torch.Tensor, rows: np.ndarray, schedule: Schedule, state: State,
                  layers: Sequence[tuple[LstmWeights, LstmWeights]], addresses: np.ndarray, *, skips: bool,
                  clips: tuple[float | None, float | None], initial_state: State | None = None,
                  precision: str = "highest") -> State:
    """Run every layer over the packed rows of a schedule, and return the final state (see `LstmStack.run`).

    `inputs` [R, P], of any float type, and `rows` int32 [2, S] are those of the first layer, `layers` the weights of
    every layer. `addresses` uint64 [L, 2, S]: where each layer writes the output float32 [P] of each direction at each
    packed row; the next layer reads it there. No two are equal, and the caller keeps the memory. With `skips` the
    layers above the first add their input to their output. `clips` are those of cells and of the projection. `state` is
    not changed. The bits are those of `elmo_fast.ops.projected_lstm.projected_lstm`, layer by layer.
    """
    module, precision = native_module()[0], effective_precision(precision)
    slots = None if schedule.is_in_order else schedule.slots
    h, c = (in_slot_order(values.float(), slots, axis=1) for values in state)  # [L, slots, 2 P], [L, slots, 2 D]
    initial = None if initial_state is None else [_array(values) for values in initial_state]  # [L, 2 P], [L, 2 D]
    projection, dim = h.shape[2] // 2, c.shape[2] // 2
    inputs, rows = inputs.float().contiguous(), np.ascontiguousarray(rows, dtype=np.int32)
    common = {"dim": dim, "projection": projection, "steps": len(schedule.batch_sizes), "packed_rows": rows.shape[1],
              "batch_sizes": schedule.batch_sizes.ctypes.data,
              "sequence_start": schedule.sequence_starts.ctypes.data if initial else 0, "slots": h.shape[1],
              "cell_clip": limit(clips[0]), "proj_clip": limit(clips[1]), "threads": threads(),
              "precision": number_of(precision)}
    all_packed = cached(flat_stack(layers), f"lstm stack {on_this_machine(precision)}",
                        lambda _: [packed_lstm(weights, precision) for weights in layers])
    for layer, (weights, packed) in enumerate(zip(layers, all_packed)):
        arguments = common | {
            "input": len(weights[0][0]) - projection, "packed": packed.data_ptr(), "packed_size": packed.numel(),
            "h": h[layer].data_ptr(), "c": c[layer].data_ptr(), "outputs": addresses[layer].ctypes.data,
            "initial_h": initial[0][layer].ctypes.data if initial else 0,
            "initial_c": initial[1][layer].ctypes.data if initial else 0}
        if layer == 0:
            module.lstm_forward(**arguments, inputs=inputs.data_ptr(), input_rows=len(inputs), rows=rows.ctypes.data)
        else:
            module.lstm_forward_at(**arguments, inputs=addresses[layer - 1].ctypes.data, add_input=skips)
    return tuple(in_caller_order(values, slots, axis=1) for values in (h, c))


def flat_stack(layers: Iterable[tuple[LstmWeights, LstmWeights]]) -> list[torch.Tensor | None]:
    """(W, B, W_P or None) of both directions of every layer, in one list."""
    return [part for pair in layers for direction in pair for part in direction]


def _array(values: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.detach().float().numpy())
