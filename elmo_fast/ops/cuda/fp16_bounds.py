"""How large the char encoder's values can get, whatever the characters: decides between fp16 and bf16."""

from collections.abc import Sequence

import torch

from elmo_fast.ops.packing import packed

# fp16's largest number, less what rounding of operands and results may add.
LARGEST = 0.98 * torch.finfo(torch.float16).max

Pair = tuple[torch.Tensor, torch.Tensor]


def fits_fp16(char_embed: torch.Tensor, filters: Sequence[Pair], activation: str,
              highways: Sequence[Sequence[torch.Tensor]], projection: Pair | None) -> bool:
    """Whether operands and results of the char encoder stay within fp16's range for every token that can be.

    `highways` are (W_carry, b_carry, W_transform, b_transform) by layer. The answer is read off the weights, with one
    copy back from the device, and kept until one of them changes. Weights that are being trained are not looked at and
    count as unbounded, so that a training step waits for nothing; so do those of a graph that is being compiled.
    """
    tensors = [char_embed, *(part for group in (*filters, *highways, projection or ()) for part in group)]
    if torch.compiler.is_compiling() or torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return False
    return packed(tensors, f"fits_fp16 {activation}",
                  lambda _: bool(largest_value(char_embed, filters, activation, highways, tensors) < LARGEST))


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
