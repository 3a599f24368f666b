"""Weights of a layer as the CUDA tiers read them, and the products of its input."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from elmo_fast.ops.backend import native_module
from elmo_fast.ops.host_device import settle
from elmo_fast.ops.lstm_operands import flat_weights, limit, operand_type, scaled
from elmo_fast.ops.packing import packed
from elmo_fast.ops.reference import LstmWeights, half

OPERANDS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_ROWS = 256  # of one input product


@dataclass(frozen=True)
class Layer:
    """One layer: the packed recurrent weights, projections and biases, uint8 on the weights' device."""

    packed: torch.Tensor
    dim: int
    projection: int
    operand: str


def operand_for(weights: tuple[LstmWeights, LstmWeights], proj_clip: float | None) -> str:
    """`fp16` or `bf16`, what `medium` multiplies in (`lstm_operands.operand_type`)."""
    return name_of(operand_type(flat_weights(weights), "medium", limit(proj_clip)))


def name_of(dtype: torch.dtype) -> str:
    """The operand type's name; that of no kernel here for any other type."""
    return next((name for name, each in OPERANDS.items() if each == dtype), str(dtype))


def prepared(weights: tuple[LstmWeights, LstmWeights], operand: str) -> Layer:
    """The layer as the kernels read it, kept as long as the weights live and made again when one was edited."""
    return packed(flat_weights(weights), f"lstm layer {operand}", lambda detached: _pack(detached, operand))


def input_products(x: torch.Tensor, weights: tuple[LstmWeights, LstmWeights],
                   operand: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x W_x of each direction, [R, 4 D] fp32 without the bias; x [R, I] for both, or [R, 2 I], forward half first.

    Rows are `scaled` for fp16, so that any input fits. A row's bits do not depend on the others.
    """
    width = input_width(weights)
    halves = (x, x) if x.shape[1] == width else (half(x, 0), half(x, 1))
    return tuple(input_product(part, weights, direction, operand) for direction, part in enumerate(halves))


def input_product(x: torch.Tensor, weights: tuple[LstmWeights, LstmWeights], direction: int,
                  operand: str) -> torch.Tensor:
    """One direction of `input_products`, x [R, I]."""
    dtype, width = OPERANDS[operand], input_width(weights)

    def cast(detached: Sequence[torch.Tensor]) -> torch.Tensor:
        made = detached[0][:width].to(dtype)
        settle(made.device)
        return made

    w = packed([weights[direction][0]], f"lstm inputs {operand}", cast)
    rows, scale = scaled(x.float()) if operand == "fp16" else (x, None)
    with torch.autocast(x.device.type, enabled=False):
        return _in_blocks(rows.to(dtype), w, scale)


def _in_blocks(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """x w in fp32, row r times scale[r]; every product of the same number of rows.

    A library may add in another order for another number of them.
    """
    rows = -(-len(x) // _ROWS) * _ROWS
    padded = torch.cat([x, x.new_zeros(rows - len(x), x.shape[1])])
    products = x.new_empty(rows, w.shape[1], dtype=torch.float32)
    for begin in range(0, rows, _ROWS):
        _multiply(padded[begin : begin + _ROWS], w, products[begin : begin + _ROWS])
        if scale is not None:  # while the block is in the cache
            products[begin : begin + _ROWS][: len(x) - begin].mul_(scale[begin : begin + _ROWS, None])
    return products[: len(x)]


def _multiply(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    if x.is_cuda:
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
