"""Vectors of the words a caller chose to keep, in AllenNLP's numbering (`vocab_to_cache`)."""

from collections.abc import Callable

import torch
from torch import nn


class WordCache(nn.Module):
    """`weight` [V, P]: row k is the vector of word k, where number 0 stands for padding. `marks` [2, P]: `<S>`, `</S>`."""

    def __init__(self, words: torch.Tensor, marks: torch.Tensor, trained: bool):
        super().__init__()
        self.weight = nn.Parameter(words.clone(), requires_grad=trained)
        self.register_buffer("marks", marks.clone(), persistent=False)

    def look_up(self, words: torch.Tensor, encode: Callable[[torch.Tensor], torch.Tensor]):
        """Vectors of sentences given as word numbers int [B, T], with the two marks around each.

        `encode` gives the vectors of the positions that a mask bool [B, T] picks: words beyond the table.
        Returns rows [R, P], the row of each token int64 [N], and the mask [B, T + 2].
        """
        self._check(words)
        batch, longest = words.shape
        rare = words >= len(self.weight)
        rows = [self.marks, self.weight, *([encode(rare)] if rare.any() else [])]
        numbers = (words + 2).masked_scatter(rare, torch.arange(rare.sum(), device=words.device) + len(self.weight) + 2)
        lengths = (words > 0).sum(1)
        framed = words.new_zeros(batch, longest + 2)  # row 0 is <S>
        framed[:, 1:-1] = numbers
        framed[torch.arange(batch, device=words.device), lengths + 1] = 1
        mask = torch.arange(longest + 2, device=words.device) < lengths[:, None] + 2
        return torch.cat(rows), framed[mask], mask

    def _check(self, words: torch.Tensor) -> None:
        if words.dim() != 2 or words.is_floating_point() or (words < 0).any():
            raise ValueError(f"word_inputs: expected word numbers of shape [batch, tokens], none negative, "
                             f"got {words.dtype} of shape {tuple(words.shape)}")
        present = words > 0
        if (present[:, 1:] & ~present[:, :-1]).any():
            raise ValueError("word_inputs: expected every sentence's words before its padding (number 0), "
                             "got a 0 in front of a word")
