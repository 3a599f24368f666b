"""The weights of one LSTM layer as the products on a GPU read them: both directions side by side, in the operand type.

`weight_cache` holds them as long as the weights; CUDA graphs read them where they lie.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from elmo_fast.ops.device import is_capturing, settle
from elmo_fast.ops.weight_cache import cached

LARGEST = 30000.0  # of a weight or a clip, for fp16 operands: half of what fp16 holds


@dataclass(frozen=True, eq=False)
class Operands:
    """`w_x` [I, 2, 4 D], `w_h` [2, P, 4 D] and, where there is a projection, `w_p` [2, D, P] in the operand type.

    `bias` fp32 [2, 4 D]. Two that are not the same object may hold different values.
    """

    w_x: torch.Tensor
    w_h: torch.Tensor
    bias: torch.Tensor
    w_p: torch.Tensor | None

    dtype = property(lambda self: self.w_h.dtype)
    dim = property(lambda self: self.bias.shape[1] // 4)
    projection = property(lambda self: self.w_h.shape[1])


def operands(weights: Sequence[torch.Tensor], precision: str, proj_clip: float) -> Operands:
    """`flat_weights` in the type that their products run in.

    `medium` multiplies in fp16 where the clip bounds h (without a projection |h| < 1) and every weight is at most
    `LARGEST`, which is checked once for each version of the weights; else in bf16.
    """
    dtype = torch.float32
    if precision == "medium":
        bounded = len(weights) == 4 or proj_clip <= LARGEST
        dtype = torch.float16 if bounded and cached(weights, "lstm fits fp16", _fits_fp16) else torch.bfloat16
    return cached(weights, f"lstm operands {dtype}", lambda detached: _stacked(detached, dtype))


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 rows [..., I] that fit fp16: each divided by a power of two that brings its largest finite value below 2^15.

    Also returns those powers, fp32 [...].
    """
    largest = x.abs().nan_to_num_(0, 0).amax(-1)
    scale = torch.frexp(largest).exponent.sub_(15).clamp_(min=0).exp2()
    return x / scale[..., None], scale


def _fits_fp16(weights: Sequence[torch.Tensor]) -> bool:
    _refuse_while_capturing(weights)
    largest = torch.stack([each.abs().amax().float() for each in weights if each.dim() == 2]).amax()
    return float(largest) <= LARGEST


def _stacked(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> Operands:
    _refuse_while_capturing(weights)
    parts = len(weights) // 2
    w, b, *w_p = (torch.stack(pair) for pair in zip(weights[:parts], weights[parts:]))
    width = w.shape[1] - (w_p[0].shape[2] if w_p else b.shape[1] // 4)
    made = Operands(w[:, :width].transpose(0, 1).to(dtype).contiguous(), w[:, width:].to(dtype).contiguous(), b.float(),
                    w_p[0].to(dtype) if w_p else None)
    settle(w.device)
    return made


def _refuse_while_capturing(weights: Sequence[torch.Tensor]) -> None:
    """Memory allocated in a capture is freed with its graph, and nothing can be copied to the host in one."""
    if is_capturing(weights[0].device):
        raise RuntimeError("weights: expected a model that has run once before a CUDA graph is captured, "
                           "got one whose weights are not prepared")


# fp16's largest number, less what rounding of operands and results may add.
LARGEST_FP16 = 0.98 * torch.finfo(torch.float16).max

Pair = tuple[torch.Tensor, torch.Tensor]


def fits_fp16(char_embed: torch.Tensor, filters: Sequence[Pair], activation: str,
              highways: Sequence[Sequence[torch.Tensor]], projection: Pair | None) -> bool:
    """Whether operands and results of the char encoder stay within fp16's range for every token that can be.

    `highways` are (W_carry, b_carry, W_transform, b_transform) by layer. The answer takes one copy back from the
    device and is cached until a weight changes. Weights in training are skipped and count as unbounded, so that a
    training step waits for nothing; so do those of a graph that is being compiled.
    """
    tensors = [char_embed, *(part for group in (*filters, *highways, projection or ()) for part in group)]
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(each.requires_grad for each in tensors)):
        return False
    return cached(tensors, f"fits_fp16 {activation}",
                  lambda _: bool(largest_value(char_embed, filters, activation, highways, tensors) < LARGEST_FP16))


def largest_value(char_embed, filters, activation, highways, tensors) -> torch.Tensor:
    """An upper bound of every weight, operand and result; NaN where a weight is: fp64, no dimension."""
    def size(tensor):
        return tensor.detach().double().abs()

    seen = size(char_embed).amax(0)  # [E]
    bound = torch.stack([((size(weight)[0] * seen[:, None]).sum((0, 1)) + size(bias)).amax()
                         for weight, bias in filters]).amax()
    bounds = [bound]
    if activation == "tanh":
        bound = torch.clamp(bound, max=1.0)
    for _, _, weight, bias in highways:
        bound = torch.maximum(bound, (size(weight).sum(0) * bound + size(bias)).amax())
        bounds.append(bound)
    return torch.stack([*bounds, *(size(each).amax() for each in tensors)]).amax()
