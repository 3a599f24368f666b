"""A highway layer in a single kernel.

A program takes BM rows of x and BN outputs. It runs the products of carry and transform on the same tile of x; gate,
relu and mix follow on the accumulators in registers, and only the result is written. Programs are numbered so that
programs that run together share rows of x and columns of the weights in L2.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from elmo_fast.kernels.configs import launch_options

GROUP = 8  # tiles of rows that run together


def pack_weight(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight [N, N] in the kernel's fastest layout: the inner dimension is contiguous."""
    return weight.to(dtype).t().contiguous().t()


def highway(x: torch.Tensor, weights: Sequence[torch.Tensor], operands: str, out: torch.Tensor) -> None:
    """A layer x [tokens, N] -> out [tokens, N] with W_carry, b_carry, W_transform, b_transform.

    W [N, N] come from `pack_weight`; b are fp32 [N].
    """
    rows, size = x.shape
    if not rows:
        return
    options = launch_options("highway", operands, rows, x.device)
    _highway[(triton.cdiv(rows, options["BM"]) * triton.cdiv(size, options["BN"]),)](
        x, *weights, out, rows, size, *weights[0].stride(), GROUP=GROUP, enable_fp_fusion=True, **options)


@triton.heuristics({"EVEN": lambda args: args["size"] % args["BK"] == args["size"] % args["BN"] == 0})
@triton.jit(do_not_specialize=["rows"])
def _highway(x, w_carry, b_carry, w_transform, b_transform, out, rows, size, stride_k, stride_n, GROUP: tl.constexpr,
             EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # GROUP tiles of rows share each tile of columns before the next one is read.
    program = tl.program_id(0)
    row_tiles, column_tiles = tl.cdiv(rows, BM), tl.cdiv(size, BN)
    before = program // (GROUP * column_tiles) * GROUP
    together = tl.minimum(row_tiles - before, GROUP)
    within = program % (GROUP * column_tiles)
    first_row = (before + within % together) * BM
    column = within // together * BN + tl.arange(0, BN)

    # Rows past the end read the last row and are not stored. A single base pointer and 32-bit offsets within the tile
    # leave the registers to the sums.
    row = tl.arange(0, BM)
    row_inside = tl.minimum(row, rows - 1 - first_row)
    column_inside = column < size
    x += first_row.to(tl.int64) * size
    out += first_row.to(tl.int64) * size
    k = tl.arange(0, BK)
    x_at = row_inside[:, None] * size + k[None, :]
    weight_at = k[:, None] * stride_k + column[None, :] * stride_n
    # Sums begin at the biases, which then need no registers of their own at the end.
    carry = tl.zeros((BM, BN), tl.float32) + tl.load(b_carry + column, mask=column_inside, other=0.0)[None, :]
    transform = tl.zeros((BM, BN), tl.float32) + tl.load(b_transform + column, mask=column_inside, other=0.0)[None, :]
    for start in range(0, size, BK):
        inside = (k < size - start) | EVEN  # no masks where tiles divide the sizes
        both_inside = inside[:, None] & (column_inside | EVEN)[None, :]
        tile = tl.load(x + start + x_at, mask=inside[None, :], other=0.0)
        weight = tl.load(w_carry + start * stride_k + weight_at, mask=both_inside, other=0.0)
        carry = tl.dot(tile, weight, carry, input_precision="tf32")
        weight = tl.load(w_transform + start * stride_k + weight_at, mask=both_inside, other=0.0)
        transform = tl.dot(tile, weight, transform, input_precision="tf32")

    stored = (row < rows - first_row)[:, None] & column_inside[None, :]
    gate = tl.sigmoid(carry)
    value = tl.maximum(transform, 0.0, propagate_nan=tl.PropagateNan.ALL)
    at = row[:, None] * size + column[None, :]
    carried = tl.load(x + at, mask=stored, other=0.0).to(tl.float32)
    result = gate * value + (1.0 - gate) * carried
    tl.store(out + at, result.to(out.dtype.element_ty), mask=stored)
