"""The char-CNN in plain torch, without the windows that see only padding.

All windows that start in a token's padding have the same value, a constant per filter. The maximum includes this
constant when such a window exists.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from elmo_fast.ops.char_cnn.activations import ACTIVATIONS
from elmo_fast.ops.char_cnn.reference import Filters, with_zero_row

PADDING_ID = 261
# So few that on a CPU the windows and their products stay in the caches and in memory that the process has used.
_TOKENS_AT_ONCE, _TOKENS_AT_ONCE_ELSEWHERE = 128, 1024
_WINDOWS_AT_ONCE = 32768  # in a gradient, which keeps every window's values


def char_cnn(ids: torch.Tensor, char_embed: torch.Tensor, filters: Filters, activation: str) -> torch.Tensor:
    """Compute the same as `reference.char_cnn`: ids [N, C] -> [N, filters]."""
    table = with_zero_row(char_embed)
    pieces = [char_embed.new_empty(0, sum(weight.shape[-1] for weight, _ in filters))]
    orders = [torch.empty(0, dtype=torch.int64, device=ids.device)]
    for rows, longest in _by_length(ids):
        orders.append(rows)
        pieces.append(_short_tokens(ids[rows], longest, table, filters, activation))
    values = torch.cat(pieces)
    return torch.empty_like(values).index_copy(0, torch.cat(orders), values)


def gradients(ids: torch.Tensor, tensors: Sequence[torch.Tensor], activation: str, grad: torch.Tensor,
              needed: Sequence[bool], around: Callable) -> list[torch.Tensor | None]:
    """Gradients of `tensors` (char_embed, every weight, then every bias) from `grad` [N, filters], recomputed in fp32.

    A tensor that `needed` marks False gets None. The products run in the context `around()`. Memory holds the windows
    of a bounded number of tokens at a time.
    """
    leaves = [tensor.detach().float().contiguous().requires_grad_(want) for tensor, want in zip(tensors, needed)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    sums = [torch.zeros_like(leaf) for leaf in wanted]
    filters = list(zip(leaves[1 : 1 + len(leaves) // 2], leaves[1 + len(leaves) // 2 :]))
    for rows, longest in _by_length(ids, _WINDOWS_AT_ONCE):
        with torch.enable_grad(), around():
            value = _short_tokens(ids[rows], longest, with_zero_row(leaves[0]), filters, activation)
            grads = torch.autograd.grad(value, wanted, grad[rows].to(value.dtype), allow_unused=True)
        for total, gradient in zip(sums, grads):
            if gradient is not None:
                total += gradient
    rest = iter(sums)
    return [next(rest).to(tensor.dtype) if want else None for tensor, want in zip(tensors, needed)]


def token_lengths(ids: torch.Tensor) -> torch.Tensor:
    """Position after the last id of every row that is not padding: ids [N, C] -> int64 [N]."""
    positions = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return ((ids != PADDING_ID) * positions).amax(1)


def _by_length(ids: torch.Tensor, windows: int | None = None) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield groups of rows of `ids`, by rising length, with the length of the group's longest row (at least 1).

    `windows` bounds the number of windows of a group of more than one row.
    """
    lengths = token_lengths(ids)
    order = lengths.argsort()
    ends = lengths[order].tolist()
    at_once = _TOKENS_AT_ONCE if ids.device.type == "cpu" else _TOKENS_AT_ONCE_ELSEWHERE
    first = 0
    while first < len(ends):
        last = first + at_once
        while windows and last > first + 1 and (min(last, len(ends)) - first) * max(1, *ends[first:last]) > windows:
            last = first + (last - first) // 2
        yield order[first:last], max(1, *ends[first:last])
        first = last


def _short_tokens(ids, longest: int, table, filters, activation: str) -> torch.Tensor:
    """Filter values of tokens whose ids from position `longest` on are padding: ids [N, C] -> [N, filters]."""
    dim, positions = table.shape[1], ids.shape[1]
    widest = max(weight.shape[1] for weight, _ in filters)
    characters = table[ids[:, : longest + widest - 1]].flatten(1)  # [N, characters that a window may see * E]
    pooled = []
    for weight, bias in filters:
        width = weight.shape[1]
        kernel = weight.reshape(width * dim, -1)
        starts = min(longest, positions - width + 1)
        windows = characters.unfold(1, width * dim, dim)[:, :starts]  # [N, starts, width * E]
        value = (windows.reshape(-1, width * dim) @ kernel).view(len(ids), starts, -1).max(1).values
        if starts < positions - width + 1:
            padding = table[PADDING_ID].repeat(1, width) @ kernel  # [1, n]
            value = torch.where((padding > value) | padding.isnan(), padding, value)
        pooled.append(ACTIVATIONS[activation].apply(value + bias))
    return torch.cat(pooled, dim=1)
