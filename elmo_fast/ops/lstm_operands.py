"""The weights of one LSTM layer as its products on a GPU read them: in the type that a precision multiplies in.

Every tier goes by `operand_type` and `scaled`. fp32 weights are read where they are. 16-bit copies are kept as long as
the weights live, and made again when an edit in place has changed those.
"""

import itertools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from elmo_fast.ops.host_device import is_capturing, settle
from elmo_fast.ops.reference import LstmWeights

LARGEST = 30000.0  # of a weight or a clip, for fp16 operands: half of what fp16 holds
_serials = itertools.count()


@dataclass(frozen=True)
class Operands:
    """Each a pair, forward then backward: `w_x` [I, 4 D], `w_h` [P, 4 D], `bias` fp32 [4 D], `w_p` [D, P] or None.

    Two with the same `serial` hold the same values. `owner` is a number of the weights' own: see `when_gone`.
    """

    owner: int
    serial: int
    dtype: torch.dtype
    w_x: tuple[torch.Tensor, torch.Tensor]
    w_h: tuple[torch.Tensor, torch.Tensor]
    bias: tuple[torch.Tensor, torch.Tensor]
    w_p: tuple[torch.Tensor, torch.Tensor] | None

    @property
    def scaled(self) -> bool:
        """Whether rows that they multiply are scaled, so that any input fits fp16."""
        return self.dtype == torch.float16


@dataclass
class _Kept:
    """What is known of one layer's weights: by kind, the key of the tensors it was made from, and what was made."""

    owner: int = field(default_factory=lambda: next(_serials))
    made: dict[str, tuple[tuple, object]] = field(default_factory=dict)

    def get(self, kind: str, key: tuple, make: Callable[[], object]):
        if kind not in self.made or self.made[kind][0] != key:
            self.made[kind] = key, make()
        return self.made[kind][1]


_kept = WeakTensorKeyDictionary()
_on_gone: list[Callable[[int], None]] = []


def when_gone(callback: Callable[[int], None]) -> None:
    """Have `callback(owner)` called when the weights that `owner` stands for are freed."""
    _on_gone.append(callback)


def flat_weights(weights: tuple[LstmWeights, LstmWeights]) -> list[torch.Tensor]:
    """W, B and, where there is one, W_P; forward then backward."""
    return [part for direction in weights for part in direction if part is not None]


def limit(clip: float | None) -> float:
    """A clip as a number: infinite for none."""
    return math.inf if clip is None else float(clip)


def operand_type(weights: list[torch.Tensor], precision: str, proj_clip: float) -> torch.dtype:
    """The type that products of `flat_weights` run in.

    `medium` multiplies in fp16 where the clip bounds h (without a projection |h| < 1) and every weight is at most
    `LARGEST`, which is looked up once for each version of the weights; else in bf16.
    """
    if precision != "medium":
        return torch.float32
    kept, key = _kept_of(weights)
    bounded = len(weights) == 4 or proj_clip <= LARGEST
    return kept.get(f"type {bounded}", key, lambda: _type(weights, bounded))


def scaled(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 rows [n, I] that fit fp16: each divided by a power of two that brings its largest finite value below 2^15.

    Also returns those powers, fp32 [n].
    """
    largest = torch.where(rows.isfinite(), rows.abs(), 0).amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    exponent = (torch.frexp(largest).exponent - 15).clamp(min=0)
    return torch.ldexp(rows, -exponent[:, None]), torch.ldexp(torch.ones_like(largest), exponent)


def operands(weights: list[torch.Tensor], projection: int, precision: str, proj_clip: float) -> Operands:
    """`flat_weights` in the type of `operand_type`."""
    dtype = operand_type(weights, precision, proj_clip)
    kept, key = _kept_of(weights)
    if all(each.dtype == dtype for each in weights if each.dim() == 2):
        serial, cast = kept.get("none", key, lambda: next(_serials)), weights
    else:
        serial, cast = kept.get(str(dtype), key, lambda: (next(_serials), _cast(weights, dtype)))
    return _pairs(kept.owner, serial, dtype, [each.detach() for each in cast], projection)


def _kept_of(weights: list[torch.Tensor]) -> tuple[_Kept, tuple]:
    """What is known of a layer, and the key of its weights as they are."""
    kept = _kept.get(weights[0])
    if kept is None:
        kept = _kept[weights[0]] = _Kept()
        weakref.finalize(kept, _gone, kept.owner)
    return kept, tuple((each.data_ptr(), _version(each)) for each in weights)


def _pairs(owner, serial, dtype, parts, projection) -> Operands:
    forward, backward = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    width = len(forward[0]) - projection
    return Operands(
        owner, serial, dtype, w_x=(forward[0][:width], backward[0][:width]),
        w_h=(forward[0][width:], backward[0][width:]), bias=(forward[1].float(), backward[1].float()),
        w_p=(forward[2], backward[2]) if len(forward) == 3 else None)


def _type(weights, bounded: bool) -> torch.dtype:
    if not bounded:
        return torch.bfloat16
    _refuse_while_capturing(weights)
    largest = torch.stack([each.detach().abs().amax().float() for each in weights if each.dim() == 2]).amax()
    return torch.float16 if float(largest) <= LARGEST else torch.bfloat16


def _cast(weights, dtype: torch.dtype) -> list[torch.Tensor]:
    _refuse_while_capturing(weights)
    cast = [each.detach().to(dtype) if each.dim() == 2 else each.detach().float() for each in weights]
    settle(weights[0].device)
    return cast


def _refuse_while_capturing(weights) -> None:
    """What a capture allocates dies with its graph, and nothing can be looked up in one."""
    if is_capturing(weights[0].device):
        raise RuntimeError("weights: expected a model that has run once before a CUDA graph is captured, "
                           "got one whose weights are not prepared")


def _version(tensor: torch.Tensor) -> object:
    """Counts edits in place; an inference tensor does not count them, so nothing made from it is trusted."""
    return object() if tensor.is_inference() else tensor._version


def _gone(owner: int) -> None:
    for callback in _on_gone:
        callback(owner)
