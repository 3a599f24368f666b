"""How tokens lie in tensors: padded with or without boundaries, unique, in text order or in the order of steps."""

import functools
from typing import NamedTuple

import torch

from elmo_fast.ops.device import HostCopy
from elmo_fast.ops.reference import restore


class BiLmOutput(NamedTuple):
    """`activations`, a list of [B, T, 2 P], token layer first, zero past a sentence's end; `mask` bool [B, T].

    Unpacks as a pair, and answers to `["activations"]` and `["mask"]` as AllenNLP's dictionary does.
    """

    activations: list[torch.Tensor]
    mask: torch.Tensor

    def __getitem__(self, key):
        return getattr(self, key) if isinstance(key, str) else tuple(self)[key]


def on_host(*ids: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Ids where their layout is worked out: those on a GPU copied back, all of them behind one wait, others as they are.

    Character ids travel as int16 and word ids as int32; what lies beyond 16 or 32 bits arrives as a number that is no id.
    """
    away = [each for each in ids if isinstance(each, torch.Tensor) and each.device.type == "cuda"]
    if not away:
        return list(ids)
    kinds = [torch.int16 if each.dim() > 2 else torch.int32 for each in away]
    short = [each.clamp(-1, torch.iinfo(kind).max).to(kind) for each, kind in zip(away, kinds)]
    arrived = iter(HostCopy(short, torch.cuda.current_stream(away[0].device)).result())
    return [next(arrived) if isinstance(each, torch.Tensor) and each.device.type == "cuda" else each for each in ids]


def add_boundaries(ids: torch.Tensor, mask: torch.Tensor, first: torch.Tensor, last: torch.Tensor):
    """Put `first` before and `last` after each sentence: ids [B, T, ...], mask [B, T] -> T + 2 positions."""
    batch, longest = mask.shape
    framed = ids.new_zeros(batch, longest + 2, *ids.shape[2:])
    framed[:, 1:-1] = ids
    framed[:, 0] = first.to(ids)
    lengths = mask.sum(1)
    framed[torch.arange(batch, device=ids.device), lengths + 1] = last.to(ids)
    return framed, torch.arange(longest + 2, device=ids.device) < lengths[:, None] + 2


def remove_boundaries(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Drop `<S>` and `</S>`: values [B, T + 2, ...] and mask [B, T + 2] -> [B, T, ...], zero past the end, and [B, T].

    The mask keeps its type. From AllenNLP's `remove_sentence_boundaries`.
    """
    lengths = (mask > 0).sum(1) - 2
    inner = torch.arange(max(mask.shape[1] - 2, 0), device=mask.device) < lengths[:, None]
    shape = (*inner.shape, *[1] * (values.dim() - 2))
    return torch.where(inner.view(shape), values[:, 1:-1], values.new_zeros(())), inner.to(mask.dtype)


def in_text_order(steps: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Outputs at packed rows [S, 2 P], of tokens `order` int64 [2, S] in each direction -> [S, 2 P] by token."""
    halves = (restore(half, one) for half, one in zip(steps.chunk(2, dim=1), order))
    return torch.cat(list(halves), dim=1)


def unique_rows(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unique rows and the number of each row among them: ids int [N, ...] -> [U, ...], int64 [N].

    Rows are told apart by a 64-bit hash and then compared; should two rows share a hash, they are sorted instead.
    """
    rows = ids.flatten(1) if ids.dim() > 1 else ids[:, None]
    hashes = row_hashes(rows)
    unique, number = torch.unique(hashes, return_inverse=True)
    first = torch.empty_like(unique).index_copy(0, number, torch.arange(len(ids), device=ids.device))
    if not torch.equal(rows[first][number], rows):
        return torch.unique(ids, dim=0, return_inverse=True)
    return ids[first], number


def row_hashes(rows: torch.Tensor) -> torch.Tensor:
    """A 64-bit hash of each row: int [N, C] -> int64 [N]."""
    return (rows.long() * _multipliers(rows.shape[1], rows.device)).sum(1)


@functools.lru_cache(maxsize=16)
def _multipliers(count: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-(2**62), 2**62, (count,), generator=generator).mul_(2).add_(1).to(device)
