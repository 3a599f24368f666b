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
    seen = char_embed.detach().double().abs().amax(0)  # [E]
    tops = []
    for weight, bias in filters:
        sums = (weight.detach().double()[0].abs() * seen[:, None]).sum((0, 1)) + bias.detach().double().abs()  # [n]
        tops.append(sums.amax())
    bound = torch.stack(tops).amax()
    bounds = [bound]
    if activation == "tanh":
        bound = torch.clamp(bound, max=1.0)
    for _, _, weight, bias in highways:
        reached = weight.detach().double().abs().sum(0) * bound + bias.detach().double().abs()
        bound = torch.maximum(bound, reached.amax())
        bounds.append(bound)
    return torch.stack([*bounds, *(each.detach().abs().amax().double() for each in tensors)]).amax()
