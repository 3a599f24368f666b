"""The C++ engine's projected LSTM: forward, and in `highest` forward with saved tensors and backward.

Registered with `torch.library` as `torch.ops.elmo_fast.projected_lstm`, `.projected_lstm_train` and
`.projected_lstm_backward`. The numbers of both forwards are the same to the bit, and gradients have the same bits on any
number of threads. There are no second derivatives: asking for them raises `RuntimeError`.
"""

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.cpu import aligned_bytes, limit, on_cpu, packed_weights, pointer
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.reference import LstmWeights, State, restore
from elmo_fast.ops.schedule import Schedule
from elmo_fast.ops.weight_cache import emptied

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_OPERANDS = ("Tensor inputs, Tensor? rows, Tensor live, Tensor? starts, Tensor h, Tensor c, Tensor w_0, Tensor b_0, "
             "Tensor? p_0, Tensor w_1, Tensor b_1, Tensor? p_1, Tensor? initial_h, Tensor? initial_c, float cell_clip, "
             "float proj_clip")
_library.define("projected_lstm(Tensor inputs, Tensor? rows, Tensor live, Tensor? starts, Tensor h, Tensor c, "
                "Tensor packed, int dim, int precision, float cell_clip, float proj_clip, Tensor? initial_h, "
                "Tensor? initial_c, int precomputed=0) -> (Tensor, Tensor, Tensor)")
_library.define(f"projected_lstm_train({_OPERANDS}, Tensor packed) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(f"projected_lstm_backward(Tensor? grad_out, Tensor? grad_h, Tensor? grad_c, {_OPERANDS}, Tensor saved, "
                f"bool[] needed) -> ({', '.join(['Tensor'] * 11)})")
_TENSORS = 14  # operands before the clips


def projected_lstm(
    inputs: torch.Tensor,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    initial_state: State | None = None,
    precomputed: bool = False,
    precision: str = "highest",
) -> tuple[torch.Tensor, State]:
    """As `reference.projected_lstm`, in a precision that `runs_precision`."""
    width = len(weights[0][0]) - state[0].shape[1] // 2
    dim, level = len(weights[0][1]) // 4, PRECISIONS.index(precision)
    packed = packed_lstm(weights, precision)
    order = torch.from_numpy(schedule.slots)
    out, h, c = torch.ops.elmo_fast.projected_lstm(
        inputs.contiguous(), None if rows is None else rows.to(torch.int32).contiguous(),
        torch.from_numpy(schedule.batch_sizes), None if initial_state is None else torch.from_numpy(schedule.sequence_starts),
        state[0][order], state[1][order], packed, dim, level, limit(cell_clip), limit(proj_clip),
        *((None, None) if initial_state is None else (each.contiguous() for each in initial_state)), width if precomputed else 0)
    return out, (restore(h, order), restore(c, order))


def packed_lstm(weights: tuple[LstmWeights, LstmWeights], precision: str, keep: bool = True) -> torch.Tensor:
    """Packed weights of `projected_lstm` in a precision that `runs_precision`, uint8."""
    w, b, w_p = weights[0]
    projection = len(b) // 4 if w_p is None else w_p.shape[1]
    shape = len(w) - projection, len(b) // 4, projection
    return packed_weights((*weights[0], *weights[1]), f"lstm {precision}",
                          lambda each: _pack_lstm(shape, PRECISIONS.index(precision), each), keep)


def drop_lstm(weights: tuple[LstmWeights, LstmWeights], precision: str) -> list[torch.Tensor | None]:
    """Pack one layer; its six tensors in the order given, the matrices emptied."""
    packed_lstm(weights, on_cpu(precision))
    return emptied([*weights[0], *weights[1]])


def _pack_lstm(shape: tuple[int, int, int], level: int, tensors) -> torch.Tensor:
    module = native_module()[0]
    packed = aligned_bytes(module.lstm_packed_size(*shape, level))
    pairs = [[pointer(tensors[k]), pointer(tensors[k + 3])] for k in range(3)]
    module.lstm_pack(*shape, level, *pairs, packed.data_ptr(), packed.numel())
    return packed


def _run_lstm(inputs, rows, live, starts, h, c, packed, dim, precision, cell_clip, proj_clip, initial_h, initial_c,
              precomputed=0):
    """`precomputed` is the size of the inputs that were precomputed, or 0 when they were not."""
    count = len(inputs) if rows is None else rows.shape[1]
    places = torch.arange(count, dtype=torch.int32).expand(2, -1).contiguous()
    h, c, out = h.clone(), c.clone(), h.new_empty(count, h.shape[1])
    projection = h.shape[1] // 2
    width = precomputed or (inputs.shape[1] // 2 if rows is None else inputs.shape[1])
    native_module()[0].lstm_forward(
        input=width, dim=dim, projection=projection, precision=precision,
        packed=packed.data_ptr(), packed_size=packed.numel(),
        inputs=inputs.data_ptr(), input_rows=len(inputs), split_input=rows is None, precomputed=bool(precomputed),
        steps=len(live), batch_sizes=live.data_ptr(), packed_rows=count,
        rows=(places if rows is None else rows).data_ptr(), out_rows=places.data_ptr(),
        sequence_start=pointer(starts), initial_h=pointer(initial_h), initial_c=pointer(initial_c),
        output=out.data_ptr(), output_rows=count, slots=len(h), h=h.data_ptr(), c=c.data_ptr(),
        cell_clip=cell_clip, proj_clip=proj_clip, threads=torch.get_num_threads())
    return out, h, c


def _fake_lstm(inputs, rows, live, starts, h, c, packed, dim, precision, cell_clip, proj_clip, initial_h, initial_c,
               precomputed=0):
    count = inputs.shape[0] if rows is None else rows.shape[1]
    return h.new_empty(count, h.shape[1]), torch.empty_like(h), torch.empty_like(c)


def projected_lstm_train(
    inputs: torch.Tensor,
    rows: torch.Tensor | None,
    schedule: Schedule,
    state: State,
    weights: tuple[LstmWeights, LstmWeights],
    *,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    initial_state: State | None = None,
) -> tuple[torch.Tensor, State]:
    """As `reference.projected_lstm`, differentiable in every operand that holds floats."""
    order = torch.from_numpy(schedule.slots)
    out, h, c, _ = torch.ops.elmo_fast.projected_lstm_train(
        inputs.contiguous(), None if rows is None else rows.to(torch.int32).contiguous(),
        torch.from_numpy(schedule.batch_sizes), None if initial_state is None else torch.from_numpy(schedule.sequence_starts),
        state[0][order], state[1][order], *weights[0], *weights[1],
        *((None, None) if initial_state is None else (each.contiguous() for each in initial_state)),
        limit(cell_clip), limit(proj_clip), packed_lstm(weights, "highest", keep=False))
    return out, (restore(h, order), restore(c, order))


def _sizes(inputs, rows, h, c) -> tuple[int, int, int, int]:
    """Step-rows, and the columns of input, cells and outputs of one direction."""
    if rows is None:
        return inputs.shape[0], inputs.shape[1] // 2, c.shape[1] // 2, h.shape[1] // 2
    return rows.shape[1], inputs.shape[1], c.shape[1] // 2, h.shape[1] // 2


def _row_numbers(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32).expand(2, -1).contiguous()


def _call(inputs, rows, live, starts, h, c, packed, initial_h, initial_c, cell_clip, proj_clip, places) -> dict:
    """What forward and backward tell the engine alike; the tensors must outlive the call."""
    count, width, dim, projection = _sizes(inputs, rows, h, c)
    address = pointer
    return dict(
        input=width, dim=dim, projection=projection, packed=packed.data_ptr(), packed_size=packed.numel(),
        inputs=inputs.data_ptr(), input_rows=len(inputs), split_input=rows is None, steps=len(live),
        batch_sizes=live.data_ptr(), packed_rows=count, rows=(places if rows is None else rows).data_ptr(),
        sequence_start=address(starts), initial_h=address(initial_h), initial_c=address(initial_c), slots=len(h), h=h.data_ptr(),
        c=c.data_ptr(), cell_clip=cell_clip, proj_clip=proj_clip, threads=torch.get_num_threads())


def _train(inputs, rows, live, starts, h, c, w_0, b_0, p_0, w_1, b_1, p_1, initial_h, initial_c, cell_clip, proj_clip,
           packed):
    module = native_module()[0]
    count, width, dim, projection = _sizes(inputs, rows, h, c)
    places = _row_numbers(count)
    h, c, out = h.clone(), c.clone(), h.new_empty(count, h.shape[1])
    saved = torch.empty(module.lstm_saved_size(width, dim, projection, count), dtype=torch.uint8)
    call = _call(inputs, rows, live, starts, h, c, packed, initial_h, initial_c, cell_clip, proj_clip, places)
    module.lstm_forward_saving(call, output=out.data_ptr(), out_rows=places.data_ptr(), saved=saved.data_ptr(),
                               saved_size=saved.numel())
    return out, h, c, saved


def _fake_train(inputs, rows, live, starts, h, c, w_0, b_0, p_0, w_1, b_1, p_1, initial_h, initial_c, cell_clip,
                proj_clip, packed):
    count, width, dim, projection = _sizes(inputs, rows, h, c)
    size = [native_module()[0].lstm_saved_size(int(width), int(dim), int(projection), rows) for rows in (0, 1)]
    return (h.new_empty(count, h.shape[1]), torch.empty_like(h), torch.empty_like(c),
            h.new_empty(size[0] + (size[1] - size[0]) * count, dtype=torch.uint8))


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.cell_clip, ctx.proj_clip, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[3])


def _backward(ctx, grad_out, grad_h, grad_c, _):
    *tensors, saved = ctx.saved_tensors
    needed = [bool(each) for each in ctx.needs_input_grad[:_TENSORS]]
    found = torch.ops.elmo_fast.projected_lstm_backward(grad_out, grad_h, grad_c, *tensors, ctx.cell_clip,
                                                        ctx.proj_clip, saved, needed)
    places = [0, *range(4, _TENSORS)]  # of the float operands
    grads: list = [None] * (_TENSORS + 3)
    for place, grad in zip(places, found):
        if needed[place]:
            grads[place] = grad
    return tuple(grads)


def _wanted(operand, needed: bool, *shape) -> torch.Tensor:
    """Memory for a gradient, [0] where none is asked for."""
    return operand.new_empty(shape or operand.shape) if needed else operand.new_empty(0)


def _gradients(inputs, rows, h, c, weights, initial_state, needed):
    """New tensors for the gradients in the order of the op's results; those of inputs one for each direction."""
    like_inputs = inputs.new_zeros(2, *inputs.shape) if rows is not None and needed[0] else _wanted(inputs, needed[0])
    return [like_inputs, torch.empty_like(h), torch.empty_like(c),
            *(h.new_empty(0) if each is None else _wanted(each, needed[6 + k], *each.shape)
              for k, each in enumerate(weights)),
            *(h.new_empty(0) if each is None else torch.empty_like(each) for each in initial_state)]


def _run_backward(grad_out, grad_h, grad_c, inputs, rows, live, starts, h, c, w_0, b_0, p_0, w_1, b_1, p_1, initial_h,
                  initial_c, cell_clip, proj_clip, saved, needed):
    module, weights = native_module()[0], (w_0, b_0, p_0, w_1, b_1, p_1)
    count = _sizes(inputs, rows, h, c)[0]
    places, packed = _row_numbers(count), _packed(inputs, rows, h, c, weights)
    grads = _gradients(inputs, rows, h, c, weights, (initial_h, initial_c), needed)
    for grad, given in zip(grads[1:3], (grad_h, grad_c)):
        grad.zero_() if given is None else grad.copy_(given)
    grad_out = h.new_zeros(count, h.shape[1]) if grad_out is None else grad_out.contiguous()
    call = _call(inputs, rows, live, starts, h, c, packed, initial_h, initial_c, cell_clip, proj_clip, places)
    scratch = torch.empty(module.lstm_backward_scratch_size(call), dtype=torch.uint8)
    address = [each.data_ptr() for each in grads]
    half = 4 * (inputs.shape[1] // 2 if rows is None else inputs.numel())
    module.lstm_backward(
        call, saved=saved.data_ptr(), saved_size=saved.numel(), grad_output=grad_out.data_ptr(), grad_h=address[1],
        grad_c=address[2], grad_inputs=[address[0], address[0] and address[0] + half], grad_weights=address[3:9:3],
        grad_biases=address[4:9:3], grad_projections=address[5:9:3], grad_initial_h=address[9], grad_initial_c=address[10],
        scratch=scratch.data_ptr(), scratch_size=scratch.numel())
    if rows is not None and needed[0]:
        grads[0] = grads[0][0] + grads[0][1]
    return tuple(grads)


def _fake_backward(grad_out, grad_h, grad_c, inputs, rows, live, starts, h, c, w_0, b_0, p_0, w_1, b_1, p_1, initial_h,
                   initial_c, cell_clip, proj_clip, saved, needed):
    grads = _gradients(inputs, rows, h, c, (w_0, b_0, p_0, w_1, b_1, p_1), (initial_h, initial_c), needed)
    return (_wanted(inputs, needed[0]), *grads[1:])


def _packed(inputs, rows, h, c, weights) -> torch.Tensor:
    """The weights as gradients read them; an optimizer edits them before the next call."""
    module, sizes = native_module()[0], _sizes(inputs, rows, h, c)[1:]
    packed = aligned_bytes(module.lstm_backward_packed_size(*sizes))
    plain = [None if each is None else each.contiguous() for each in weights]
    matrices, _, projections = ([pointer(plain[k]), pointer(plain[k + 3])] for k in range(3))
    module.lstm_backward_pack(*sizes, matrices, projections, packed.data_ptr(), packed.numel())
    return packed


def _no_second_derivatives(ctx, *_):
    raise RuntimeError("projected_lstm: the native backend has no second derivatives; backend='torch' has them")


_library.impl("projected_lstm", _run_lstm, "CPU")
_library.impl("projected_lstm_train", _train, "CPU")
_library.impl("projected_lstm_backward", _run_backward, "CPU")
torch.library.register_fake("elmo_fast::projected_lstm", _fake_lstm, lib=_library)
torch.library.register_fake("elmo_fast::projected_lstm_train", _fake_train, lib=_library)
torch.library.register_fake("elmo_fast::projected_lstm_backward", _fake_backward, lib=_library)
torch.library.register_autograd("elmo_fast::projected_lstm_train", _backward, setup_context=_keep, lib=_library)
torch.library.register_autograd("elmo_fast::projected_lstm_backward", _no_second_derivatives, lib=_library)
