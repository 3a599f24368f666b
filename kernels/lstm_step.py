"""The recurrent product of an LSTM step and the gates in one kernel, for 16-bit operands.

A program takes BM slots and BN cells of a direction. It sums the products of i, j, f and o in registers, so that
neither they nor the gates are ever in memory. Programs that run together share columns of the weights in L2.
"""

import triton
import triton.language as tl

from elmo_fast.kernels import configs
from elmo_fast.kernels.lstm_pointwise import _clip, _tanh


def step(operand, w_h, z, scale, bias, meta, initial_c, c, m, operands: str, cell_clip: float) -> None:
    """Multiply `operand` [2, L, P] by `w_h` [2, P, 4 D], both of type `operands`, and compute a step's gates.

    `w_h` is fastest if its inner dimension, P, is contiguous. The other arguments are those of `lstm_pointwise.gates`.
    A tile of slots without a token ends at once.
    """
    (_, slots, dim), projection = c.shape, operand.shape[2]
    kernel = configs.choose("lstm_step", _step, operands, slots, c.device)
    kernel[lambda meta: (triton.cdiv(slots, meta["BM"]) * triton.cdiv(dim, meta["BN"]), 2)](
        operand, w_h, z, z if scale is None else scale, bias, meta, initial_c, c, m, dim, projection, slots,
        *w_h.stride()[1:], cell_clip, SCALED=scale is not None, enable_fp_fusion=True)


@triton.jit
def _gate(total, inner, factor, shift, stored, inside):
    z = tl.load(inner, mask=stored, other=0.0).to(tl.float32)
    return total + z * factor + tl.load(shift, mask=inside, other=0.0)[None, :]


# `slots` and the addresses within a chunk's buffers are not specialised: all calls of a layer run the same variants
@triton.heuristics({"EVEN": lambda given: given["projection"] % given["BK"] == given["dim"] % given["BN"] == 0})
@triton.jit(do_not_specialize=["slots"], do_not_specialize_on_alignment=["meta"])
def _step(operand, w_h, z, scale, bias, meta, initial_c, c, m, dim, projection, slots, stride_k, stride_n, cell_clip,
          SCALED: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    direction = tl.program_id(1)
    tiles = tl.cdiv(slots, BM)
    slot = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    has_slot = slot < slots
    row = tl.load(meta + direction * slots + slot, mask=has_slot, other=-1)
    if tl.max(row, 0) >= 0:
        cell = tl.program_id(0) // tiles * BN + tl.arange(0, BN)
        inside = cell < dim
        k = tl.arange(0, BK)
        # Slots past the end read the last one and are not stored.
        h_at = (direction * slots + tl.minimum(slot, slots - 1))[:, None] * projection + k[None, :]
        w_at = direction * projection * 4 * dim + k[:, None] * stride_k + cell[None, :] * stride_n
        i = tl.zeros((BM, BN), tl.float32)
        j = tl.zeros((BM, BN), tl.float32)
        f = tl.zeros((BM, BN), tl.float32)
        o = tl.zeros((BM, BN), tl.float32)
        for start in range(0, projection, BK):
            in_k = (k < projection - start) | EVEN
            both = in_k[:, None] & (inside | EVEN)[None, :]
            h = tl.load(operand + start + h_at, mask=in_k[None, :], other=0.0)
            w = w_h + start * stride_k + w_at
            i = tl.dot(h, tl.load(w, mask=both, other=0.0), i)
            j = tl.dot(h, tl.load(w + dim * stride_n, mask=both, other=0.0), j)
            f = tl.dot(h, tl.load(w + 2 * dim * stride_n, mask=both, other=0.0), f)
            o = tl.dot(h, tl.load(w + 3 * dim * stride_n, mask=both, other=0.0), o)
        stored = (row >= 0)[:, None] & inside[None, :]
        at_row = row * 2 + direction  # an arena holds fewer than 2^31 values
        factor = tl.load(scale + at_row, mask=row >= 0, other=0.0)[:, None] if SCALED else 1.0
        inner = z + (at_row[:, None] * dim + cell[None, :]) * 4
        shift = bias + direction * 4 * dim + cell
        at = (direction * slots + slot)[:, None] * dim + cell[None, :]
        starts = tl.load(meta + 2 * slots + slot, mask=has_slot, other=0) != 0
        before = tl.load(c + at, mask=stored & (starts == 0)[:, None], other=0.0) + tl.load(
            initial_c + direction * dim + cell[None, :] + tl.zeros_like(slot)[:, None],
            mask=stored & starts[:, None], other=0.0)
        kept = tl.sigmoid(_gate(f, inner + 2, factor, shift + 2 * dim, stored, inside) + 1.0) * before
        added = tl.sigmoid(_gate(i, inner, factor, shift, stored, inside)) * _tanh(
            _gate(j, inner + 1, factor, shift + dim, stored, inside))
        after = _clip(kept + added, cell_clip)
        tl.store(c + at, after, mask=stored)
        out = tl.sigmoid(_gate(o, inner + 3, factor, shift + 3 * dim, stored, inside)) * _tanh(after)
        tl.store(m + at, out.to(m.dtype.element_ty), mask=stored)
