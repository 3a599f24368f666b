"""The projected LSTM with gradients on a GPU: a step is two GEMMs and two pointwise operations for both directions.

The forward saves the gates, so that the backward computes none again. After the backward's steps, each weight's
gradient is one GEMM over all packed rows. Operands and sums of the backward are fp32. Values are [rows, 2, n], so that
a step's are contiguous; GEMMs read them as [2, rows, n]. Any device can run it.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.engine.precision import has_16_bit_operands, operands_of
from elmo_fast.ops.device import on, to_device
from elmo_fast.ops.numerics import gemm, gradient_numerics, numerics, type_of
from elmo_fast.ops.projected_lstm.arguments import LstmArguments, LstmGradients, memory_for_gradients
from elmo_fast.ops.projected_lstm.cuda.blocks import Operands, send, stacked


def saved_size(call: LstmArguments) -> int:
    """Bytes of the tensor saved for backward."""
    return 4 * sum(math.prod(shape) for shape in _saved_shapes(call))


def _saved_shapes(call: LstmArguments) -> list[tuple[int, ...]]:
    """Gates of every packed row, c before the first step of each slot and after every packed row, and h unclipped."""
    (_, dim, projection), rows = call.sizes, call.packed_rows
    return [(rows, 2, 4 * dim), (call.c.shape[0] + rows, 2, dim), (rows, 2, projection)]


def _saved_parts(saved: torch.Tensor, call: LstmArguments) -> list[torch.Tensor]:
    shapes = _saved_shapes(call)
    parts = saved.view(torch.float32).split([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes)]


class _Steps:
    """Where the steps of a call find their rows.

    States are [slots + S, 2, n]: those of the slots before the call in the order of the schedule, then those after each
    packed row. `before` int32 [S] is the row that a packed row continues, `last` int32 [slots] that of a slot's final
    state, in the caller's order. `has_start` bool [S, 1, 1] is where a sequence starts; `starts` has the part of each
    step, None if there is no start.
    """

    def __init__(self, call: LstmArguments):
        slots, count, batch_sizes = len(call.h), call.packed_rows, call.batch_sizes.numpy().astype(np.int64)
        self.sizes = batch_sizes.tolist()
        first = np.cumsum(batch_sizes) - batch_sizes  # [steps]
        slot = np.arange(count) - np.repeat(first, batch_sizes)  # [S]
        before = slot + np.repeat(np.append(0, slots + first)[:-1], batch_sizes)
        last = np.arange(slots)
        last[slot] = slots + np.arange(count)  # of equal indices the last is assigned
        order = np.arange(slots) if call.slots is None else call.slots.numpy()
        positions = np.argsort(order)
        flags = np.zeros(count, bool) if call.sequence_starts is None else call.sequence_starts.numpy()
        has_start = np.array([part.any() for part in np.split(flags, first[1:])], bool)[: len(self.sizes)]
        arrays = order, positions, before, last[positions], flags
        self._order, self._positions, self.before, self.last, flags = send(
            [array.astype(np.int32) for array in arrays], call.inputs.device)
        self.has_start = flags.bool()[:, None, None]
        self.starts = [start if any_start else None
                       for start, any_start in zip(self.has_start.split(self.sizes), has_start)]

    def by_slot(self, state: torch.Tensor) -> torch.Tensor:
        """A copy of a state [slots, 2 n] of the caller as [slots, 2, n] in the order of the schedule."""
        return _halves(state).index_select(0, self._order)

    def in_caller_order(self, states: torch.Tensor) -> torch.Tensor:
        """The inverse of `by_slot` for the first rows of states."""
        return states.index_select(0, self._positions).flatten(1)

    def of_states(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        """States before the first step and after each step."""
        return states.split([len(self.last), *self.sizes])


def forward(call: LstmArguments, pointwise) -> tuple[torch.Tensor, ...]:
    """The op with `save`, by a module of pointwise kernels."""
    dtype, proj_clip, slots = type_of(operands_of(call.precision, False)), _proj_clip(call), len(call.h)
    _, dim, projection = call.sizes
    precision = "highest" if has_16_bit_operands(call.precision) else call.precision
    with on(call.inputs.device), numerics(precision, call.inputs.device):
        steps, layer = _Steps(call), stacked(call.weights, dtype)
        saved = torch.empty(saved_size(call), dtype=torch.uint8, device=call.inputs.device)
        gates, cells, r = _saved_parts(saved, call)
        gemm(_batched(_inputs(call).to(dtype)), layer.w_x.transpose(0, 1), _batched(gates))
        before = steps.by_slot(call.h)
        operand = torch.empty(slots + len(r), 2, projection, dtype=dtype, device=r.device)  # h of every GEMM
        operand[:slots], cells[:slots] = before, steps.by_slot(call.c)
        zh, m = r.new_empty(slots, 2, 4 * dim), operand.new_empty(slots, 2, dim)
        _run_steps(call, steps, layer, (operand, cells, gates, r), (zh, m), pointwise)
        h = r.clamp(-proj_clip, proj_clip)
        final = (states.index_select(0, steps.last).flatten(1) for states in (torch.cat([before, h]), cells))
        return h.flatten(1), *final, saved


def _run_steps(call: LstmArguments, steps: _Steps, layer: Operands, of_rows: Sequence[torch.Tensor],
               memory: Sequence[torch.Tensor], pointwise) -> None:
    """Run all steps. `of_rows`: h as an operand and c [slots + S, 2, n], z and h unclipped [S, 2, n].

    `memory` has the products [slots, 2, 4 D] and m [slots, 2, D] of a step.
    """
    (operand, cells, gates, r), (zh, m), (initial_h, initial_c) = of_rows, memory, _initial_state(call)
    proj_clip = _proj_clip(call)
    limits = [zh.new_full((), limit) for limit in (-proj_clip, proj_clip)]  # with numbers results must be fp32
    hs, cs, rs = steps.of_states(operand), steps.of_states(cells), r.split(steps.sizes)
    for step, (size, z, start) in enumerate(zip(steps.sizes, gates.split(steps.sizes), steps.starts)):
        products, c, to_project = zh[:size], cs[step][:size], rs[step] if layer.w_p is None else m[:size]
        gemm(_batched(_state_before(hs[step][:size], start, initial_h)), layer.w_h, _batched(products))
        pointwise.gates_saving(products, z, layer.bias, _state_before(c, start, initial_c), cs[step + 1], to_project,
                               call.cell_clip)
        if layer.w_p is not None:
            gemm(_batched(to_project), layer.w_p, _batched(rs[step]))
        torch.clamp(rs[step], *limits, out=hs[step + 1])


def backward(grad_out, grad_h, grad_c, saved, needed, call: LstmArguments, pointwise) -> list[torch.Tensor]:
    """Gradients of the operands in `needed`, from those of the results, which may be None."""
    needed, device, slots = LstmGradients.unflatten(needed), call.inputs.device, len(call.h)
    with on(device), gradient_numerics(call.precision, device):
        steps, layer = _Steps(call), stacked(call.weights, torch.float32)
        gates, cells, r = _saved_parts(saved, call)
        grads = memory_for_gradients(call, needed)
        grads.initial_h.zero_(), grads.initial_c.zero_()
        grad_states = _grad_states(grad_out, grad_h, steps, r)
        grad_cells = steps.by_slot(torch.zeros_like(call.c) if grad_c is None else grad_c)
        grad_z, grad_r = torch.empty_like(gates), grad_states[slots:]
        m = grad_r if layer.w_p is None else torch.empty_like(cells[slots:])  # first the gradient of m
        _run_backward(call, steps, layer, (gates, cells, r, m), (grad_states, grad_cells, grad_z), grads, pointwise)
        _write_gradients(grads, needed, call, steps, (grad_z, m, grad_r), r, layer.w_x)
        return grads._replace(h=steps.in_caller_order(grad_states), c=steps.in_caller_order(grad_cells)).flatten()


def _run_backward(call: LstmArguments, steps: _Steps, layer: Operands, of_rows: Sequence[torch.Tensor],
                  grads_of_rows: Sequence[torch.Tensor], grads: LstmGradients, pointwise) -> None:
    """Run all steps backward. `of_rows`: the gates, c, h unclipped, and memory for m.

    `grads_of_rows`: the gradient of h in every state, which each step completes; of each slot's last c [slots, 2, D],
    which becomes that of the first; and memory for the gradient of z. Gradients of the initial state are added to
    `grads`.
    """
    (gates, cells, r, m), (grad_states, grad_cells, grad_z) = of_rows, grads_of_rows
    grad_hs, cs = steps.of_states(grad_states), steps.of_states(cells)
    zs, ms, grad_zs = (values.split(steps.sizes) for values in (gates, m, grad_z))
    w_h, w_p = layer.w_h.transpose(1, 2), None if layer.w_p is None else layer.w_p.transpose(1, 2)
    _, initial_c = _initial_state(call)
    proj_clip = _proj_clip(call)
    is_clipped = None if math.isinf(proj_clip) else (r.abs() > proj_clip).split(steps.sizes)
    for step in reversed(range(len(steps.sizes))):
        size, start = steps.sizes[step], steps.starts[step]
        grad_before, grad_c = grad_hs[step][:size], grad_cells[:size]
        if is_clipped is not None:
            grad_hs[step + 1].masked_fill_(is_clipped[step], 0)
        if w_p is not None:
            gemm(_batched(grad_hs[step + 1]), w_p, _batched(ms[step]))
        c = _state_before(cs[step][:size], start, initial_c)
        pointwise.gates_gradient(ms[step], zs[step], c, cs[step + 1], grad_c, grad_zs[step])
        if start is None:
            _batched(grad_before).baddbmm_(_batched(grad_zs[step]), w_h)
        else:
            grad_state = _batched(torch.bmm(_batched(grad_zs[step]), w_h))
            _split_starts(start, (grad_state, grads.initial_h), (grad_c, grads.initial_c))
            grad_before += grad_state


def _grad_states(grad_out, grad_h, steps: _Steps, r: torch.Tensor) -> torch.Tensor:
    """The gradient of h in every state, as far as it comes from the results; a step makes it that of h unclipped."""
    slots = len(steps.last)
    grad_states = r.new_zeros(slots + len(r), *r.shape[1:])
    if grad_out is not None:
        grad_states[slots:] = _halves(grad_out)
    if grad_h is not None:
        grad_states.index_add_(0, steps.last, _halves(grad_h))
    return grad_states


def _split_starts(start: torch.Tensor, *grads: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Move the gradients of states that a sequence starts from to the initial state's, which sum over sequences."""
    for grad, total in grads:
        total += grad.masked_fill(~start, 0).sum(0).flatten()
        grad.masked_fill_(start, 0)


def _write_gradients(grads, needed, call, steps, of_rows, r, w_x) -> None:
    """Write the gradients of weights and inputs from values of all packed rows: those of z, m and those of r."""
    grad_z, m, grad_r = of_rows
    x, parts, proj_clip = _inputs(call), len(call.weights) // 2, _proj_clip(call)
    h = torch.cat([steps.by_slot(call.h), r.clamp(-proj_clip, proj_clip)]).index_select(0, steps.before)
    initial_h, _ = _initial_state(call)
    xh = torch.cat([x, _state_before(h, None if initial_h is None else steps.has_start, initial_h)], 2)  # [S, 2, I + P]
    for number, (grad, is_needed) in enumerate(zip(grads.weights, needed.weights)):
        direction, part = divmod(number, parts)
        if is_needed and part == 1:
            torch.sum(grad_z[:, direction], 0, out=grad)
        elif is_needed:
            left, right = (m, grad_r) if part else (xh, grad_z)
            gemm(left[:, direction].t(), right[:, direction], grad)
    if needed.inputs:
        grad_x = _batched(torch.bmm(_batched(grad_z), w_x.permute(1, 2, 0)))  # [S, 2, I]
        if call.rows is None:
            grads.inputs.copy_(grad_x.flatten(1))
        else:
            rows = to_device(call.rows, r.device).t().long()  # [S, 2]
            grads.inputs.zero_().index_put_((rows,), grad_x, accumulate=True)  # deterministic


def _inputs(call: LstmArguments) -> torch.Tensor:
    """The inputs of each direction at each packed row, [S, 2, I]."""
    if call.rows is None:
        return _halves(call.inputs)
    rows = to_device(call.rows, call.inputs.device).t()
    return call.inputs.index_select(0, rows.flatten()).view(*rows.shape, call.width)


def _initial_state(call: LstmArguments) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """h [2, P] and c [2, D] where a sequence starts, or None."""
    return tuple(None if x is None else x.view(2, -1) for x in (call.initial_h, call.initial_c))


def _state_before(state: torch.Tensor, start: torch.Tensor | None, initial: torch.Tensor | None) -> torch.Tensor:
    """The state [n, 2, ...] that a step reads, `initial` [2, ...] where `start` says so."""
    return state if start is None else torch.where(start, initial.to(state.dtype), state)


def _proj_clip(call: LstmArguments) -> float:
    """The limit of h; without a projection h is not clipped."""
    return call.proj_clip if len(call.weights) == 6 else math.inf


def _halves(x: torch.Tensor) -> torch.Tensor:
    """[n, 2 m] -> [n, 2, m], forward first."""
    return x.unflatten(1, (2, -1))


def _batched(x: torch.Tensor) -> torch.Tensor:
    """[n, 2, m] <-> [2, n, m], a batch of matrices."""
    return x.transpose(0, 1)
