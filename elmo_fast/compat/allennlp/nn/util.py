"""`allennlp.nn.util`: adds and removes sentence boundaries."""

from typing import Any

import torch

from elmo_fast.nn.layers.batch_layout import add_boundaries, remove_boundaries


def remove_sentence_boundaries(tensor: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Remove `<S>` and `</S>`: tensor [B, T, ...] and mask [B, T] -> T - 2 positions, zero past the end; int64 mask."""
    inner, inner_mask = remove_boundaries(tensor, mask)
    return inner, inner_mask.long()


def add_sentence_boundary_token_ids(tensor: torch.Tensor, mask: torch.Tensor, sentence_begin_token: Any,
                                    sentence_end_token: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a begin and an end token to every sentence: tensor [B, T] or [B, T, D], mask [B, T] -> T + 2 positions.

    The tokens are numbers for [B, T], vectors [D] for [B, T, D]. The new mask is int64.
    """
    if tensor.dim() not in (2, 3):
        raise ValueError("tensor: expected shape [batch, tokens] or [batch, tokens, values], "
                         f"got {tuple(tensor.shape)}")
    boundaries = torch.as_tensor(sentence_begin_token), torch.as_tensor(sentence_end_token)
    bounded, bounded_mask = add_boundaries(tensor, mask.long(), *boundaries)
    return bounded, bounded_mask.long()
