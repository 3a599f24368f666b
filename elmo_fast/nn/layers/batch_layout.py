"""Layouts of a batch's tokens: padded with or without boundaries, unique, in text order or by packed row."""

import functools
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.ops.device import HostCopy, to_device
from elmo_fast.ops.projected_lstm.reference import restore


class BiLmOutput(NamedTuple):
    """`activations`, a list of [B, T, 2 P], token layer first, zero past a sentence's end; `mask` bool [B, T].

    Unpacks as a pair, and can be indexed by `"activations"` and `"mask"`, as AllenNLP's dictionary.
    """

    activations: list[torch.Tensor]
    mask: torch.Tensor

    def __getitem__(self, key):
        return getattr(self, key) if isinstance(key, str) else tuple(self)[key]


def on_host(*ids: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Ids on the CPU: ids on a GPU are copied, with a single wait for all copies."""
    on_gpu = [tensor for tensor in ids if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda"]
    if not on_gpu:
        return list(ids)
    copies = HostCopy(on_gpu, torch.cuda.current_stream(on_gpu[0].device)).result()
    copied = {id(tensor): copy for tensor, copy in zip(on_gpu, copies)}
    return [copied.get(id(tensor), tensor) for tensor in ids]


def checked_mask(ids: torch.Tensor, source, name: str = "ids") -> torch.Tensor:
    """Where ids [B, T, ...] hold tokens, bool [B, T]; `ValueError` for gaps, and on the CPU for ids out of range.

    `source` reads the ids: it has the shape of a token's ids, `row_shape`, and the `largest` id.
    """
    if ids.device.type == "cpu" and ids.numel() and (ids.min() < 0 or ids.max() > source.largest):
        raise ValueError(f"ids: expected {'character' if source.row_shape else 'word'} ids from 0 to {source.largest}, "
                         f"got {int(ids.min())} to {int(ids.max())}")
    mask = (ids > 0).flatten(2).any(2) if source.row_shape else ids > 0
    if (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ValueError(f"{name}: expected every sentence's tokens before its padding, "
                         "got a position without a token in front of one with a token")
    return mask


def add_boundaries(ids: torch.Tensor, mask: torch.Tensor, first: torch.Tensor, last: torch.Tensor):
    """Put `first` before and `last` after each sentence: ids [B, T, ...], mask [B, T] -> T + 2 positions."""
    batch, longest = mask.shape
    bounded = ids.new_zeros(batch, longest + 2, *ids.shape[2:])
    bounded[:, 1:-1] = ids
    bounded[:, 0] = first.to(ids)
    lengths = mask.sum(1)
    bounded[torch.arange(batch, device=ids.device), lengths + 1] = last.to(ids)
    return bounded, torch.arange(longest + 2, device=ids.device) < lengths[:, None] + 2


def remove_boundaries(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Drop `<S>` and `</S>`: values [B, T + 2, ...] and mask [B, T + 2] -> [B, T, ...], zero past the end, and [B, T].

    The mask keeps its type. From AllenNLP's `remove_sentence_boundaries`.
    """
    lengths = (mask > 0).sum(1) - 2
    inner = torch.arange(max(mask.shape[1] - 2, 0), device=mask.device) < lengths[:, None]
    shape = (*inner.shape, *[1] * (values.dim() - 2))
    return torch.where(inner.view(shape), values[:, 1:-1], values.new_zeros(())), inner.to(mask.dtype)


def all_in_text_order(vectors: torch.Tensor, index: torch.Tensor, layers: list[torch.Tensor], order: np.ndarray,
                      places: torch.Tensor | None, size: int) -> list[torch.Tensor]:
    """The token layer and the LSTM's `layers` [S, 2 P] in text order, [N, 2 P], or with `places` [size, 2 P].

    `index` int [N] are the rows of the token vectors [R, P]; `order` and `places` are those of `layers_to_write`.
    """
    device = vectors.device
    tokens, numbers = vectors[to_device(index, device)], to_device(order, device).long()  # [N, P], [2, S]
    halves = [map(restore, layer.chunk(2, dim=1), numbers) for layer in layers]
    layers = [torch.cat([*pair], dim=1) for pair in ((tokens, tokens), *halves)]
    if places is None:
        return layers
    places = to_device(places, device)
    return [layer.new_zeros(size, layer.shape[1]).index_copy(0, places, layer) for layer in layers]


def layers_to_write(vectors: torch.Tensor, order: np.ndarray, count: int, places: torch.Tensor | None,
                    size: int) -> tuple[torch.Tensor, np.ndarray]:
    """Layers in text order, [count, size, 2 P], and the addresses of those above the first, uint64 [count - 1, 2, S].

    The first layer holds the token vectors [N, P] in both halves; `order` int [2, S] is the token of each packed row in
    both directions, and the addresses are those of the P values of each row. With `places` int [N] token k is at
    places[k], and the rest is zero; without, `size` is N.
    """
    width, numbers = 2 * vectors.shape[1], order.astype(np.int64)
    if places is None:
        layers = vectors.new_empty(count, size, width, dtype=torch.float32)
        layers[0].view(size, 2, width // 2)[:] = vectors[:, None]
    else:
        layers = vectors.new_zeros(count, size, width, dtype=torch.float32)
        # Not by indexing: torch divides that among its threads from 3,000 numbers on, and waits for busy cores.
        layers[0].index_copy_(0, places, vectors.float().repeat(1, 2))
        numbers = places.numpy()[numbers]
    starts = layers.data_ptr() + np.arange(1, count)[:, None, None] * (4 * size * width)  # bytes
    return layers, (starts + 4 * (numbers * width + [[0], [width // 2]])).astype(np.uint64)


def unique_rows(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unique rows and the number of each row among them: ids int [N, ...] -> [U, ...], int64 [N].

    Rows are grouped by a 64-bit hash and then compared; where two different rows share a hash, rows are sorted instead.
    """
    rows = ids.flatten(1) if ids.dim() > 1 else ids[:, None]
    hashes = (rows.long() * _multipliers(rows.shape[1], rows.device)).sum(1)
    unique, number = torch.unique(hashes, return_inverse=True)
    first = torch.empty_like(unique).index_copy(0, number, torch.arange(len(ids), device=ids.device))
    if not torch.equal(rows[first][number], rows):
        return torch.unique(ids, dim=0, return_inverse=True)
    return ids[first], number


@functools.lru_cache(maxsize=16)
def _multipliers(count: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(-(2**62), 2**62, (count,), generator=generator, device="cpu").mul_(2).add_(1).to(device)
