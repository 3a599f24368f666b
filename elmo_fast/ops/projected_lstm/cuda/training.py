"""The projected LSTM with gradients on a GPU: a step is two GEMMs and two pointwise operations for both directions.

The forward saves the gates, so that the backward computes none again. After the backward's steps, each weight's
gradient is one GEMM over all packed rows. Operands and sums of the backward are fp32. Values are [rows, 2, n], so that
a step's are contiguous; GEMMs read them as [2, rows, n]. Any device can run it; on a GPU chunks of steps are CUDA
graphs where the host would limit them (`training_graphs`).
"""

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from elmo_fast.ops.device import on, to_device
from elmo_fast.ops.numerics import gemm, gradient_numerics, numerics, type_of
from elmo_fast.ops.precision import has_16_bit_operands, operands_of
from elmo_fast.ops.projected_lstm.arguments import LstmArguments, LstmGradients, memory_for_gradients
from elmo_fast.ops.projected_lstm.cuda.blocks import Operands, send, stacked
from elmo_fast.ops.projected_lstm.cuda.training_graphs import Places, arena_of, chunks


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
    step, None if there is no start. `chunks` are those of a graph of at most `most_slots` slots, and the others.
    """

    def __init__(self, call: LstmArguments, most_slots: int):
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
        found = list(chunks(batch_sizes, has_start, most_slots))
        arrays = order, positions, before, last[positions], flags, *(array for chunk in found for array in chunk[2:])
        self._order, self._positions, self.before, self.last, flags, *places = send(
            [array.astype(np.int32) for array in arrays], call.inputs.device)
        self.has_start = flags.bool()[:, None, None]
        self.starts = [start if any_start else None
                       for start, any_start in zip(self.has_start.split(self.sizes), has_start)]
        self.chunks = [(chunk, Places.of(chunk, *pair)) for chunk, pair in zip(found, zip(places[::2], places[1::2]))]

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
    dtype, proj_clip, (_, dim, projection), slots = _operands_of(call), _proj_clip(call), call.sizes, len(call.h)
    precision = "highest" if has_16_bit_operands(call.precision) else call.precision
    with on(call.inputs.device), numerics(precision, call.inputs.device), arena_of(call, dtype) as (arena, most_slots):
        steps, layer = _Steps(call, most_slots), stacked(call.weights, dtype)
        saved = torch.empty(saved_size(call), dtype=torch.uint8, device=call.inputs.device)
        gates, cells, r = _saved_parts(saved, call)
        gemm(_batched(_inputs(call).to(dtype)), layer.w_x.transpose(0, 1), _batched(gates))
        before, initial = steps.by_slot(call.h), _initial_state(call)
        operand = torch.empty(slots + len(r), 2, projection, dtype=dtype, device=r.device)  # h of every GEMM
        operand[:slots], cells[:slots] = before, steps.by_slot(call.c)
        zh, m = r.new_empty(slots, 2, 4 * dim), operand.new_empty(slots, 2, dim)
        hs, cs, zs, rs = (steps.of_states(operand), steps.of_states(cells), gates.split(steps.sizes),
                          r.split(steps.sizes))
        run = functools.partial(_run_steps, clips=(call.cell_clip, proj_clip), pointwise=pointwise)
        held = arena and arena.hold(layer)
        for chunk, places in steps.chunks:
            of, states = chunk.steps, slice(chunk.steps.start, chunk.steps.stop + 1)
            if places is None:
                run(layer, hs[states], cs[states], zs[of], rs[of], zh, m, starts=steps.starts[of], initial=initial)
                continue
            first, last, size, buffers = of.start, of.stop, len(zs[of.start]), arena.buffers(chunk.slots, layer)
            buffers.h[0, :size], buffers.c[0, :size] = hs[first][:size], cs[first][:size]
            count = len(places.fill(buffers.z, gates))
            arena.run(buffers, ("forward", count, call.cell_clip, proj_clip), functools.partial(
                run, held, buffers.h, buffers.c, buffers.z[:count], buffers.r, buffers.zh, buffers.m))
            hs[last].copy_(buffers.h[last - first, : len(hs[last])])
            for buffer, values in ((buffers.z, gates), (buffers.c[1:], cells[slots:]), (buffers.r, r)):
                places.read(buffer, values[chunk.rows])
        h = r.clamp(-proj_clip, proj_clip)
        final = (states.index_select(0, steps.last).flatten(1) for states in (torch.cat([before, h]), cells))
        return h.flatten(1), *final, saved


def _run_steps(layer: Operands, hs, cs, zs, rs, zh, m, clips: tuple[float, float], pointwise,
               starts=None, initial=(None, None)) -> None:
    """Run the steps of `zs`. `hs` and `cs` are states before the first step and after each step; `rs` of each step.

    `zh` and `m` are memory for a step's slots. `starts` and `initial` as in `_state_before`, by default no start.
    """
    limits = [zh.new_full((), limit) for limit in (-clips[1], clips[1])]  # with numbers results must be fp32
    for step, (z, start) in enumerate(zip(zs, starts or itertools.repeat(None))):
        size, r = len(z), rs[step]
        products, c, to_project = zh[:size], cs[step][:size], r if layer.w_p is None else m[:size]
        gemm(_batched(_state_before(hs[step][:size], start, initial[0])), layer.w_h, _batched(products))
        pointwise.gates_saving(products, z, layer.bias, _state_before(c, start, initial[1]), cs[step + 1], to_project,
                               clips[0])
        if layer.w_p is not None:
            gemm(_batched(to_project), layer.w_p, _batched(r))
        torch.clamp(r, *limits, out=hs[step + 1])


def backward(grad_out, grad_h, grad_c, saved, needed, call: LstmArguments, pointwise) -> list[torch.Tensor]:
    """Gradients of the operands in `needed`, from those of the results, which may be None."""
    needed, proj_clip, slots = LstmGradients.unflatten(needed), _proj_clip(call), len(call.h)
    device = call.inputs.device
    with (on(device), gradient_numerics(call.precision, device),
          arena_of(call, _operands_of(call)) as (arena, most_slots)):
        steps, layer = _Steps(call, most_slots), stacked(call.weights, torch.float32)
        gates, cells, r = _saved_parts(saved, call)
        _, initial_c = _initial_state(call)
        grads = memory_for_gradients(call, needed)
        grads.initial_h.zero_(), grads.initial_c.zero_()
        grad_states = _grad_states(grad_out, grad_h, steps, r)
        grad_cells = steps.by_slot(torch.zeros_like(call.c) if grad_c is None else grad_c)
        grad_z, grad_r = torch.empty_like(gates), grad_states[slots:]
        m = grad_r if layer.w_p is None else torch.empty_like(cells[slots:])  # first the gradient of m
        is_clipped = None if math.isinf(proj_clip) else r.abs() > proj_clip
        grad_hs, cs, zs, ms, grad_zs = (steps.of_states(grad_states), steps.of_states(cells), gates.split(steps.sizes),
                                        m.split(steps.sizes), grad_z.split(steps.sizes))
        clipped = None if is_clipped is None else is_clipped.split(steps.sizes)
        held = arena and arena.hold(layer)
        for chunk, places in reversed(steps.chunks):
            of, states = chunk.steps, slice(chunk.steps.start, chunk.steps.stop + 1)
            if places is None:
                _run_backward(layer, grad_hs[states], cs[states], zs[of], ms[of], grad_zs[of], grad_cells,
                              clipped and clipped[of], pointwise, steps.starts[of], initial_c, grads)
                continue
            buffers, size = arena.buffers(chunk.slots, layer), len(zs[of.start])
            for buffer, of_slots in ((buffers.c, cs), (buffers.grad_h, grad_hs)):
                buffer[0].zero_()[:size] = of_slots[of.start][:size]
            buffers.grad_c.zero_()[:size] = grad_cells[:size]
            pass_on = places.fill(buffers.z, gates).unflatten(3, (4, -1))[:, :, :, 2]  # the forget gate
            if places.idle is not None:
                pass_on.masked_fill_(places.idle, 1)
            places.fill(buffers.c[1:], cells[slots:]), places.fill(buffers.grad_h[1:], grad_r)
            if is_clipped is not None:
                places.fill(buffers.is_clipped, is_clipped)
            count = len(pass_on)
            arena.run(buffers, ("backward", count, is_clipped is None), functools.partial(
                _run_backward, held, buffers.grad_h, buffers.c, buffers.z[:count], buffers.ms, buffers.grad_z,
                buffers.grad_c, None if is_clipped is None else buffers.is_clipped, pointwise))
            grad_hs[of.start][:size], grad_cells[:size] = buffers.grad_h[0, :size], buffers.grad_c[:size]
            for buffer, values in ((buffers.grad_z, grad_z), (buffers.grad_h[1:], grad_r), (buffers.ms, m)):
                places.read(buffer, values[chunk.rows])
        _write_gradients(grads, needed, call, steps, (grad_z, m, grad_r), r, layer.w_x)
        return grads._replace(h=steps.in_caller_order(grad_states), c=steps.in_caller_order(grad_cells)).flatten()


def _run_backward(layer: Operands, grad_hs, cs, zs, ms, grad_zs, grad_cells, is_clipped, pointwise,
                  starts=None, initial_c=None, grads: LstmGradients | None = None) -> None:
    """Run the steps of `zs` backward. `grad_hs` and `cs` are of the states before the first step and after each step.

    `grad_cells` [slots, 2, D], the gradient of each slot's last c, becomes that of the first; `is_clipped` is None
    where h is not clipped. Gradients of the initial state are added to `grads`.
    """
    w_h, w_p = layer.w_h.transpose(1, 2), None if layer.w_p is None else layer.w_p.transpose(1, 2)
    for step, (z, start) in reversed([*enumerate(zip(zs, starts or itertools.repeat(None)))]):
        size = len(z)
        grad_before, grad_c = grad_hs[step][:size], grad_cells[:size]
        if is_clipped is not None:
            grad_hs[step + 1].masked_fill_(is_clipped[step], 0)
        if w_p is not None:
            gemm(_batched(grad_hs[step + 1]), w_p, _batched(ms[step]))
        c = _state_before(cs[step][:size], start, initial_c)
        pointwise.gates_gradient(ms[step], z, c, cs[step + 1], grad_c, grad_zs[step])
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


def _operands_of(call: LstmArguments) -> torch.dtype:
    """The type of the forward's operands."""
    return type_of(operands_of(call.precision, False))


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
