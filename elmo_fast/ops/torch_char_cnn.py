"""Char-CNN over real characters only, in plain torch.

A window that starts in a token's padding sees padding alone, so all of them give one constant per filter. The
constant joins the maximum when such a window exists.
"""

from collections.abc import Callable, Sequence

import torch

from elmo_fast.ops.reference import ACTIVATIONS

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PADDING_ID = 261
# On a CPU the windows and their products then stay in its caches, and in memory that is not new to the process.
_TOKENS_AT_ONCE = {"cpu": 128}
_TOKENS_AT_ONCE_ELSEWHERE = 1024


def char_cnn(
    ids: torch.Tensor,
    char_embed: torch.Tensor,
    filters: Sequence[tuple[torch.Tensor, torch.Tensor]],
    activation: str,
    multiply: Multiply = torch.matmul,
) -> torch.Tensor:
    """As `reference.char_cnn`: ids [N, C] -> [N, filters]. `multiply` is the product of windows [M, K] and [K, n]."""
    table = torch.cat([torch.zeros_like(char_embed[:1]), char_embed])  # [262, E]
    lengths = token_lengths(ids)
    order = lengths.argsort()
    ends = lengths[order].tolist()
    pieces = [char_embed.new_empty(0, sum(weight.shape[-1] for weight, _ in filters))]
    at_once = _TOKENS_AT_ONCE.get(ids.device.type, _TOKENS_AT_ONCE_ELSEWHERE)
    for first in range(0, len(ends), at_once):
        rows = order[first : first + at_once]
        longest = max(1, *ends[first : first + at_once])
        pieces.append(_short_tokens(ids[rows], longest, table, filters, activation, multiply))
    values = torch.cat(pieces)
    return torch.empty_like(values).index_copy(0, order, values)


def token_lengths(ids: torch.Tensor) -> torch.Tensor:
    """One past the last id of each row that is not padding: ids [N, C] -> int64 [N]."""
    positions = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return ((ids != PADDING_ID) * positions).amax(1)


def _short_tokens(ids, longest: int, table, filters, activation: str, multiply: Multiply) -> torch.Tensor:
    """Tokens whose ids from `longest` on are padding."""
    dim, positions = table.shape[1], ids.shape[1]
    widest = max(weight.shape[1] for weight, _ in filters)
    seen = ids[:, : min(positions, longest + widest - 1)]
    characters = table[seen].flatten(1)  # [N, seen * E]
    pooled = []
    for weight, bias in filters:
        width = weight.shape[1]
        kernel = weight.view(width * dim, -1)
        starts = min(longest, positions - width + 1)
        windows = characters.unfold(1, width * dim, dim)[:, :starts]  # [N, starts, width * E]
        value = multiply(windows.reshape(-1, width * dim), kernel).view(len(ids), starts, -1).amax(1)
        if longest + width <= positions:
            value = torch.maximum(value, multiply(table[PADDING_ID].repeat(1, width), kernel))
        pooled.append(ACTIVATIONS[activation](value + bias))
    return torch.cat(pooled, dim=1)
