"""Weights of a layer as the CUDA tiers read them, and the products of its input."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.packing import packed
from elmo_fast.ops.precision import numerics
from elmo_fast.ops.reference import LstmWeights, half

OPERANDS = {"fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST_FP16 = 65504.0
_ROWS = 256  # of one input product


@dataclass(frozen=True)
class Layer:
    """One layer: the packed recurrent weights, projections and biases, uint8 on the weights' device."""

    packed: torch.Tensor
    dim: int
    projection: int
    operand: str


def operand_for(weights: tuple[LstmWeights, LstmWeights], proj_clip: float | None) -> str:
    """`fp16` where the projection clip and max|W| bound every operand of the recurrence, else `bf16`.

    m and an h that is not projected are within ±1. Reads max|W| off the device once for each set of weights.
    """
    bound = 1.0 if weights[0][2] is None else math.inf if proj_clip is None else proj_clip
    return "fp16" if bound <= LARGEST_FP16 and largest_weight(weights) <= LARGEST_FP16 else "bf16"


def largest_weight(weights: tuple[LstmWeights, LstmWeights]) -> float:
    """max|W| over the matrices of both directions; NaN where one holds NaN."""
    def read(matrices: Sequence[torch.Tensor]) -> float:
        return float(torch.stack([each.abs().max().float() for each in matrices]).max())

    return packed([each for one in weights for each in one if each is not None and each.dim() == 2], "largest", read)


def prepared(weights: tuple[LstmWeights, LstmWeights], operand: str) -> Layer:
    """The layer as the kernels read it, kept as long as the weights live and made again when one was edited."""
    tensors = [each for one in weights for each in one if each is not None]
    return packed(tensors, f"lstm layer {operand}", lambda detached: _pack(detached, operand))


def input_products(x: torch.Tensor, weights: tuple[LstmWeights, LstmWeights], operand: str,
                   bound: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x W_x of each direction, [R, 4 D] fp32 without the bias; x [R, I] for both, or [R, 2 I], forward half first.

    `bound` is what |x| stays within where the caller knows it. fp16 operands need it; without it the product runs
    in tf32, which has fp16's precision and fp32's range. A row's bits do not depend on the others.
    """
    width = input_width(weights)
    halves = (x, x) if x.shape[1] == width else (half(x, 0), half(x, 1))
    return tuple(input_product(part, weights, direction, operand, bound) for direction, part in enumerate(halves))


def input_product(x: torch.Tensor, weights: tuple[LstmWeights, LstmWeights], direction: int, operand: str,
                  bound: float | None = None) -> torch.Tensor:
    """One direction of `input_products`, x [R, I]."""
    width = input_width(weights)
    if operand == "fp16" and not (bound is not None and bound <= LARGEST_FP16):
        with numerics("high", x.device):
            return _in_blocks(x.float(), weights[direction][0][:width].detach().float())
    dtype = OPERANDS[operand]
    w = packed([weights[direction][0]], f"lstm inputs {operand}", lambda detached: detached[0][:width].to(dtype))
    with torch.autocast(x.device.type, enabled=False):
        return _in_blocks(x.to(dtype), w)


def _in_blocks(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x w in fp32, every product of the same number of rows: a library may add in another order for another number."""
    rows = -(-len(x) // _ROWS) * _ROWS
    padded = torch.cat([x, x.new_zeros(rows - len(x), x.shape[1])])
    products = x.new_empty(rows, w.shape[1], dtype=torch.float32)
    for begin in range(0, rows, _ROWS):
        _multiply(padded[begin : begin + _ROWS], w, products[begin : begin + _ROWS])
    return products[: len(x)]


def _multiply(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    if x.dtype == torch.float32:
        torch.mm(x, w, out=out)
    elif x.is_cuda:
        torch.mm(x, w, out_dtype=torch.float32, out=out)
    else:  # only CUDA multiplies 16-bit operands into fp32
        torch.mm(x.float(), w.float(), out=out)


def input_width(weights: tuple[LstmWeights, LstmWeights]) -> int:
    """I of one layer."""
    w, b, w_p = weights[0]
    return len(w) - (len(b) // 4 if w_p is None else w_p.shape[1])


def operand_number(operand: str) -> int:
    """The operand type's number in csrc/projected_lstm_cuda.h."""
    if operand not in OPERANDS:
        raise ValueError(f"operand: expected one of {', '.join(OPERANDS)}, got {operand!r}")
    return list(OPERANDS).index(operand)


def empty_bytes(size: int, device: torch.device) -> torch.Tensor:
    """An uninitialized uint8 tensor that begins at a multiple of 256 bytes."""
    whole = torch.empty(size + 256, dtype=torch.uint8, device=device)
    return whole[-whole.data_ptr() % 256 :][:size]


def _pack(tensors: Sequence[torch.Tensor], operand: str) -> Layer:
    """Packs W, B and, where there is one, W_P of each direction on the host and sends them to the weights' device."""
    half = len(tensors) // 2
    dim = len(tensors[1]) // 4
    projection = tensors[2].shape[1] if half == 3 else dim
    plain = [each.to("cpu", torch.float32).contiguous() for each in tensors]
    recurrent = [plain[k][-projection:].contiguous() for k in (0, half)]
    module = native_module()[0]
    result = empty_bytes(module.cuda_lstm_packed_size(dim, projection), torch.device("cpu"))
    pairs = [[each.data_ptr() for each in pair] for pair in (recurrent, plain[1::half])]
    pairs.append([each.data_ptr() for each in plain[2::half]] if half == 3 else [0, 0])
    module.cuda_lstm_pack(dim, projection, operand_number(operand), *pairs, result.data_ptr(), result.numel())
    return Layer(result.to(tensors[0].device), dim, projection, operand)
