"""The two small kernels between the batched products of an LSTM step; see `ops/projected_lstm/cuda/pointwise.py`.

A program computes a block of cells of a slot in one direction; a program whose slot has no token ends at once.
"""

import triton
import triton.language as tl

_BLOCK = 512


def gates(zh, z, scale, bias, meta, initial_c, c, m, cell_clip: float) -> None:
    """Compute a step's gates: update `c` and `m` of the slots that have a token."""
    _, slots, dim = c.shape
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _gates[triton.cdiv(dim, block), slots, 2](
        zh, z, z if scale is None else scale, bias, meta, initial_c, c, m, dim, slots, cell_clip,
        SCALED=scale is not None, BLOCK=block, num_warps=4, enable_fp_fusion=True)


def hidden(r, meta, after, initial_h, h, operand, out, proj_clip: float) -> None:
    """Clip the projection's result: write `h`, `out`, and `operand` for the next step."""
    _, slots, projection = h.shape
    block = min(_BLOCK, triton.next_power_of_2(projection))
    _hidden[triton.cdiv(projection, block), slots, 2](
        r, meta, after, initial_h, h, operand, out, projection, slots, proj_clip, BLOCK=block, num_warps=4,
        enable_fp_fusion=True)


@triton.jit
def _tanh(x):
    # near zero (tanh(x) - x) / x^3 is the polynomial in x^2 of csrc/cpu/activations.h, so that no digits cancel
    size = tl.abs(x)
    square = size * size
    p = 0.00229565497 * square - 0.00834681652
    p = p * square + 0.0217699111
    p = p * square - 0.0539593995
    p = p * square + 0.133333042
    p = p * square - 0.333333343
    near = x + x * square * p
    far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * size))
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))


@triton.jit
def _clip(x, limit):
    # comparisons with NaN are false, so NaN passes, as in torch.clamp
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def _sum(outer, inner, shift, factor, inside):
    return tl.load(outer, inside) + tl.load(inner, inside).to(tl.float32) * factor + tl.load(shift, inside)


# `slots` and the addresses within a chunk's buffers are not specialised: all calls of a layer run the same variants
@triton.jit(do_not_specialize=["slots"], do_not_specialize_on_alignment=["meta"])
def _gates(zh, z, scale, bias, meta, initial_c, c, m, dim, slots, cell_clip, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    slot, direction = tl.program_id(1), tl.program_id(2)
    row = tl.load(meta + direction * slots + slot).to(tl.int64)
    if row >= 0:
        cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = cell < dim
        at = direction.to(tl.int64) * slots + slot
        inner = z + (row * 2 + direction) * 4 * dim + cell
        outer = zh + at * 4 * dim + cell
        shift = bias + direction * 4 * dim + cell
        factor = tl.load(scale + row * 2 + direction) if SCALED else 1.0
        i = _sum(outer, inner, shift, factor, inside)
        j = _sum(outer + dim, inner + dim, shift + dim, factor, inside)
        f = _sum(outer + 2 * dim, inner + 2 * dim, shift + 2 * dim, factor, inside)
        o = _sum(outer + 3 * dim, inner + 3 * dim, shift + 3 * dim, factor, inside)
        before = tl.load(c + at * dim + cell, inside)
        if tl.load(meta + 2 * slots + slot) != 0:
            before = tl.load(initial_c + direction * dim + cell, inside)
        after = _clip(tl.sigmoid(f + 1.0) * before + tl.sigmoid(i) * _tanh(j), cell_clip)
        tl.store(c + at * dim + cell, after, inside)
        tl.store(m + at * dim + cell, (tl.sigmoid(o) * _tanh(after)).to(m.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["slots"], do_not_specialize_on_alignment=["meta", "after", "out"])
def _hidden(r, meta, after, initial_h, h, operand, out, projection, slots, proj_clip, BLOCK: tl.constexpr):
    slot, direction = tl.program_id(1), tl.program_id(2)
    if tl.load(meta + direction * slots + slot) >= 0:
        column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = column < projection
        at = (direction.to(tl.int64) * slots + slot) * projection + column
        value = _clip(tl.load(r + at, inside).to(tl.float32), proj_clip)
        tl.store(h + at, value, inside)
        tl.store(out + (slot.to(tl.int64) * 2 + direction) * projection + column, value, inside)
        if tl.load(after + 2 * slots + slot) != 0:
            value = tl.load(initial_h + direction * projection + column, inside)
        tl.store(operand + at, value.to(operand.dtype.element_ty), inside)
