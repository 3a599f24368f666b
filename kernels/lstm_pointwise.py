"""The small kernels between the batched products of an LSTM step; see `ops/projected_lstm/cuda/pointwise.py`.

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


def gates_saving(zh, z, bias, before, c, m, cell_clip: float) -> None:
    """Compute the gates of a training step and keep them in `z`."""
    slots, _, dim = c.shape
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _gates_saving[triton.cdiv(dim, block), slots, 2](
        zh, z, bias, before, c, m, dim, cell_clip, BLOCK=block, num_warps=4, enable_fp_fusion=True)


def gates_gradient(m, gates, before, c, grad_c, grad_z) -> None:
    """Compute the gradient of a training step's `z`; replace the gradients in `m` and `grad_c`."""
    slots, _, dim = c.shape
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _gates_gradient[triton.cdiv(dim, block), slots, 2](
        m, gates, before, c, grad_c, grad_z, dim, BLOCK=block, num_warps=4, enable_fp_fusion=True)


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
        inner = z + ((row * 2 + direction) * dim + cell) * 4
        outer = zh + at * 4 * dim + cell
        shift = bias + direction * 4 * dim + cell
        factor = tl.load(scale + row * 2 + direction) if SCALED else 1.0
        i = _sum(outer, inner, shift, factor, inside)
        j = _sum(outer + dim, inner + 1, shift + dim, factor, inside)
        f = _sum(outer + 2 * dim, inner + 2, shift + 2 * dim, factor, inside)
        o = _sum(outer + 3 * dim, inner + 3, shift + 3 * dim, factor, inside)
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


# the tensors of a training step are slices of those of all steps, so their alignment varies
@triton.jit(do_not_specialize_on_alignment=["zh", "z", "bias", "before", "c", "m"])
def _gates_saving(zh, z, bias, before, c, m, dim, cell_clip, BLOCK: tl.constexpr):
    direction = tl.program_id(2)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < dim
    row = tl.program_id(1).to(tl.int64) * 2 + direction
    outer, inner, shift = zh + row * 4 * dim + cell, z + row * 4 * dim + cell, bias + direction * 4 * dim + cell
    at = row * dim + cell
    i = tl.sigmoid(_sum(outer, inner, shift, 1.0, inside))
    j = _tanh(_sum(outer + dim, inner + dim, shift + dim, 1.0, inside))
    f = tl.sigmoid(_sum(outer + 2 * dim, inner + 2 * dim, shift + 2 * dim, 1.0, inside) + 1.0)
    o = tl.sigmoid(_sum(outer + 3 * dim, inner + 3 * dim, shift + 3 * dim, 1.0, inside))
    value = f * tl.load(before + at, inside) + i * j
    after, is_clipped = _clip(value, cell_clip), tl.abs(value) > cell_clip
    tl.store(inner, tl.where(is_clipped, 0.0, i), inside)
    tl.store(inner + dim, tl.where(is_clipped, 0.0, j), inside)
    tl.store(inner + 2 * dim, tl.where(is_clipped, 0.0, f), inside)
    tl.store(inner + 3 * dim, o, inside)
    tl.store(c + at, after, inside)
    tl.store(m + at, (o * _tanh(after)).to(m.dtype.element_ty), inside)


@triton.jit(do_not_specialize_on_alignment=["m", "gates", "before", "c", "grad_c", "grad_z"])
def _gates_gradient(m, gates, before, c, grad_c, grad_z, dim, BLOCK: tl.constexpr):
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < dim
    row = tl.program_id(1).to(tl.int64) * 2 + tl.program_id(2)
    saved, to, at = gates + row * 4 * dim + cell, grad_z + row * 4 * dim + cell, row * dim + cell
    i, j = tl.load(saved, inside), tl.load(saved + dim, inside)
    f, o = tl.load(saved + 2 * dim, inside), tl.load(saved + 3 * dim, inside)
    tanh_c, grad_m = _tanh(tl.load(c + at, inside)), tl.load(m + at, inside)
    grad = tl.load(grad_c + at, inside) + grad_m * o * (1.0 - tanh_c * tanh_c)
    tl.store(to, grad * j * i * (1.0 - i), inside)
    tl.store(to + dim, grad * i * (1.0 - j * j), inside)
    tl.store(to + 2 * dim, grad * tl.load(before + at, inside) * f * (1.0 - f), inside)
    tl.store(to + 3 * dim, grad_m * tanh_c * o * (1.0 - o), inside)
    tl.store(grad_c + at, grad * f, inside)
    tl.store(m + at, o * tanh_c, inside)
