"""The C++ engine on the CPU: packs weights once, and hands it raw pointers. fp32 tensors in, fp32 tensors out.

Its sums have a fixed order: a row's result has the same bits whatever batch it came in and however many threads ran.
The kernels are registered with `torch.library` as `torch.ops.elmo_fast.linear` and `.projected_lstm`.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence

import torch

from elmo_fast.ops import packing
from elmo_fast.ops.backend import native_module
from elmo_fast.ops.precision import PRECISIONS
from elmo_fast.ops.reference import LstmWeights, State, restore
from elmo_fast.ops.schedule import Schedule

NO_EPILOGUE, _HIGHWAY = 0, 2

logger = logging.getLogger(__name__)

_library = torch.library.Library("elmo_fast", "FRAGMENT")
_library.define("linear(Tensor x, Tensor packed, int inputs, int outputs, int epilogue, int precision=0) -> Tensor")
_library.define("projected_lstm(Tensor inputs, Tensor? rows, Tensor live, Tensor? starts, Tensor h, Tensor c, "
                "Tensor packed, int dim, int precision, float cell_clip, float proj_clip, Tensor? initial_h, "
                "Tensor? initial_c, int precomputed=0) -> (Tensor, Tensor, Tensor)")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *,
           precision: str = "highest") -> torch.Tensor:
    """x [N, K], weight [K, M], bias [M] or None -> x W + b [N, M]; a precision that `runs_precision`."""
    inputs, outputs = weight.shape
    packed = packed_linear(weight, bias, precision)
    return torch.ops.elmo_fast.linear(x.contiguous(), packed, inputs, outputs, NO_EPILOGUE, PRECISIONS.index(precision))


def highway(x: torch.Tensor, w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
            b_transform: torch.Tensor, *, precision: str = "highest") -> torch.Tensor:
    """As `reference.highway`, the products in a precision that `runs_precision`, the rest in fp32."""
    size = len(w_carry)
    packed = packed_highway(w_carry, b_carry, w_transform, b_transform, precision)
    return torch.ops.elmo_fast.linear(x.contiguous(), packed, size, size, _HIGHWAY, PRECISIONS.index(precision))


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


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None, precision: str) -> torch.Tensor:
    """Packed weights of `linear`, uint8."""
    shape = *weight.shape, NO_EPILOGUE, PRECISIONS.index(precision)
    return packed_weights((weight, bias), f"linear {precision}", lambda each: pack_linear(*shape, each))


def packed_highway(w_carry: torch.Tensor, b_carry: torch.Tensor, w_transform: torch.Tensor,
                   b_transform: torch.Tensor, precision: str) -> torch.Tensor:
    """Packed weights of `highway`, uint8."""
    shape = *w_carry.shape, _HIGHWAY, PRECISIONS.index(precision)
    return packed_weights((w_carry, b_carry, w_transform, b_transform), f"highway {precision}",
                          lambda each: pack_linear(*shape, each))


def packed_lstm(weights: tuple[LstmWeights, LstmWeights], precision: str, keep: bool = True) -> torch.Tensor:
    """Packed weights of `projected_lstm` in a precision that `runs_precision`, uint8."""
    w, b, w_p = weights[0]
    projection = len(b) // 4 if w_p is None else w_p.shape[1]
    shape = len(w) - projection, len(b) // 4, projection
    return packed_weights((*weights[0], *weights[1]), f"lstm {precision}",
                          lambda each: _pack_lstm(shape, PRECISIONS.index(precision), each), keep)


def runs_precision(precision: str) -> bool:
    """Whether the engine has kernels for `precision` on this machine: 16-bit products need AMX."""
    module = native_module()[0]
    return module is not None and bool(module.lstm_isa(PRECISIONS.index(precision)))


def on_cpu(precision: str) -> str:
    """`precision`, or `highest` where the processor has no 16-bit tile products; says so once."""
    if runs_precision(precision):
        return precision
    _log_once(precision)
    return "highest"


@functools.cache
def _log_once(precision: str) -> None:
    logger.info("precision %r runs as 'highest': this processor has no AMX", precision)


def limit(clip: float | None) -> float:
    """A clip as the engine takes it."""
    return math.inf if clip is None else clip


def packed_weights(tensors: Sequence[torch.Tensor | None], kind: str,
                   pack: Callable[[Sequence[torch.Tensor | None]], torch.Tensor], keep: bool = True) -> torch.Tensor:
    """Weights as `pack` packs them, fp32 and contiguous, for this machine's instruction set; see `packing.packed`."""
    kind = f"{kind} for {native_module()[0].cpu_isa()}"

    def full(detached: Sequence[torch.Tensor | None]) -> torch.Tensor:
        if any(each is not None and each.is_meta for each in detached):
            raise RuntimeError(f"weights: expected fp32 weights to pack ({kind}); they were dropped, and what was "
                               "packed from them fits neither a copy of the model nor another precision")
        return pack([None if each is None else each.float().contiguous() for each in detached])

    return packing.packed(tensors, kind, full, keep)


def aligned_bytes(size: int) -> torch.Tensor:
    """An uninitialized uint8 tensor that begins on a cache line."""
    whole = torch.empty(size + 64, dtype=torch.uint8)
    return whole[-whole.data_ptr() % 64 :][:size]


def pack_linear(inputs: int, outputs: int, epilogue: int, precision: int, tensors) -> torch.Tensor:
    """Contiguous fp32 weights and biases, in the order of `linear` or `highway`, as the engine reads them."""
    module = native_module()[0]
    packed = aligned_bytes(module.linear_packed_size(inputs, outputs, epilogue, precision))
    pointers = [pointer(each) for each in tensors] + [0] * (4 - len(tensors))
    module.linear_pack(inputs, outputs, epilogue, precision, *pointers, packed.data_ptr(), packed.numel())
    return packed


def _pack_lstm(shape: tuple[int, int, int], level: int, tensors) -> torch.Tensor:
    module = native_module()[0]
    packed = aligned_bytes(module.lstm_packed_size(*shape, level))
    pairs = [[pointer(tensors[k]), pointer(tensors[k + 3])] for k in range(3)]
    module.lstm_pack(*shape, level, *pairs, packed.data_ptr(), packed.numel())
    return packed


def pointer(tensor: torch.Tensor | None) -> int:
    """Address of a tensor's data, 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def _run_linear(x, packed, inputs, outputs, epilogue, precision=0):
    y = x.new_empty(len(x), outputs)
    native_module()[0].linear_forward(
        input=inputs, output=outputs, epilogue=epilogue, precision=precision, packed=packed.data_ptr(),
        packed_size=packed.numel(), x=x.data_ptr(), rows=len(x), x_stride=inputs, y=y.data_ptr(), y_stride=outputs,
        threads=torch.get_num_threads())
    return y


def _fake_linear(x, packed, inputs, outputs, epilogue, precision=0):
    return x.new_empty(x.shape[0], outputs)


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


_library.impl("linear", _run_linear, "CPU")
_library.impl("projected_lstm", _run_lstm, "CPU")
torch.library.register_fake("elmo_fast::linear", _fake_linear, lib=_library)
torch.library.register_fake("elmo_fast::projected_lstm", _fake_lstm, lib=_library)
