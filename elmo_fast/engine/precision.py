"""The table of precisions: their operands, their tolerances, and the processor features that they need.

All code that depends on a precision reads this table; the order of its rows has no meaning. The module does not import
torch, since the command's help reads the table.
"""

import functools
from typing import NamedTuple

from elmo_fast.arguments import check_choice


class Operands(NamedTuple):
    """The operands of products. Sums are fp32.

    `dtype` names the torch type that holds the operands, `bits` counts the bits of a significand. `tolerance` is the
    relative Frobenius error of a layer against the float64 reference; loosening it is a decision to defend in a commit
    message.
    """

    dtype: str
    bits: int
    tolerance: float


class Precision(NamedTuple):
    """A precision: the names in `OPERANDS` of the operands that every engine uses.

    `cpu` in the C++ engine; `gpu` on a GPU, or `bounded` on a GPU where every value is known to fit fp16. `needs` is
    the processor feature without which the C++ engine computes in `highest`. `model_tolerance` is the largest
    difference of a model from the reference path, as a share of the largest value.
    """

    cpu: str
    gpu: str
    bounded: str
    needs: str | None
    model_tolerance: float


OPERANDS = {
    "ieee": Operands("float32", 24, 2e-6),
    "bf16x3": Operands("float32", 16, 4e-5),  # an operand is split in two bf16 parts; three products
    "tf32": Operands("float32", 11, 2.5e-3),
    "fp16": Operands("float16", 11, 3e-3),
    "bf16": Operands("bfloat16", 8, 3e-2),
    "int8": Operands("int8", 7, 3e-2)}  # with a scale for each row or column and 512 of k; sums are exact

GRADIENT_TOLERANCE = 2e-5  # of an fp32 gradient against the reference's autograd

PRECISIONS = {
    "highest": Precision("ieee", "ieee", "ieee", None, 1e-5),
    "high": Precision("bf16x3", "tf32", "tf32", "AMX", 5e-3),
    "medium": Precision("bf16", "bf16", "fp16", None, 5e-2),  # where bf16 products are slow, fp32 ones of bf16 weights
    "low": Precision("int8", "bf16", "fp16", None, 5e-2)}

check_precision = functools.partial(check_choice, "precision", choices=PRECISIONS)

# Those in which gradients can be recorded.
TRAINED = tuple(name for name, row in PRECISIONS.items() if OPERANDS[row.cpu].dtype != "int8")


def check_gradients(precision: str, are_recorded: bool) -> None:
    """Raise `ValueError` if gradients are recorded in a precision that has none."""
    if are_recorded and precision not in TRAINED:
        raise ValueError(f"precision: expected one of {', '.join(TRAINED)} where gradients are recorded, got "
                         f"{precision!r} (torch.no_grad() around the call, or weights that do not require gradients)")


def operands_of(precision: str, bounded: bool) -> str:
    """The operands of a GPU's products; `bounded` where every value is known to fit fp16."""
    return PRECISIONS[precision].bounded if bounded else PRECISIONS[precision].gpu


def has_16_bit_operands(precision: str) -> bool:
    """Whether a GPU's products have 16-bit operands."""
    return OPERANDS[PRECISIONS[precision].gpu].dtype != "float32"


def lowest(*precisions: str) -> str:
    """The precision, among those given, that rounds most."""
    return min(precisions, key=lambda name: min(OPERANDS[operands].bits for operands in PRECISIONS[name][:3]))
