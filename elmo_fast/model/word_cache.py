"""Vectors of the words a caller chose to keep, in AllenNLP's numbering (`vocab_to_cache`)."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from elmo_fast.model.layout import add_boundaries, unique_rows
from elmo_fast.model.token_lookup import TokenEmbeddings
from elmo_fast.ops.device import to_device


class NumberedWords(Protocol):
    """Vectors of words by number; `largest` is the largest number known."""

    largest: int

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of `<S>` and `</S>`, each []."""

    def numbers(self, ids: torch.Tensor) -> TokenEmbeddings:
        """Vectors of words by their numbers, int [N]."""


class WordCache(nn.Module):
    """`weight` [V, P]: row k is the vector of word k, where number 0 stands for padding. `marks` [2, P]: `<S>`, `</S>`.

    As in AllenNLP the vector of number 0 is zeros.
    """

    def __init__(self, words: torch.Tensor, marks: torch.Tensor, trained: bool):
        super().__init__()
        self.weight = nn.Parameter(words.clone(), requires_grad=trained)
        with torch.no_grad():
            self.weight[:1] = 0
        self.register_buffer("marks", marks.clone(), persistent=False)

    @property
    def largest(self) -> int:
        return len(self.weight) - 1

    def boundary_ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers beside those of words: -2 and -1."""
        return torch.tensor(-2), torch.tensor(-1)

    def numbers(self, ids: torch.Tensor) -> TokenEmbeddings:
        ids = to_device(ids, self.weight.device)
        words, marks = self.weight[ids.clamp(min=0)], self.marks[(ids + 2).clamp(max=1)]
        return TokenEmbeddings(torch.where((ids < 0)[:, None], marks.to(words), words), None)


def look_up_words(words: torch.Tensor, ids: torch.Tensor | None, known: NumberedWords,
                  encode: Callable[[torch.Tensor], TokenEmbeddings]) -> tuple[TokenEmbeddings, torch.Tensor, torch.Tensor]:
    """Vectors of sentences given as word numbers int [B, T], zero past the end, with the two marks around each.

    `encode` gives the vectors of unique rows of `ids` [B, T, C]: the characters of words beyond those known.
    `words` and `ids` lie on the host. Returns rows [R, P], the row of each token int64 [N], and the mask bool
    [B, T + 2].
    """
    _check(words, ids)
    rare = words > known.largest
    framed, mask = add_boundaries(words.long(), words > 0, *known.boundary_ids())
    numbers = framed[mask]  # [N]
    beyond = numbers > known.largest
    unique, index = numbers[~beyond].unique(return_inverse=True)
    found = known.numbers(unique)
    if not beyond.any():
        return found, index, mask
    if ids is None:
        raise ValueError(f"ids: expected character ids beside word_inputs that hold numbers above {known.largest}, "
                         f"got None and the number {int(words.max())}")
    characters, place = unique_rows(ids[rare])
    vectors = torch.cat([found.vectors, encode(characters).vectors])
    whole = torch.empty_like(numbers)
    whole[~beyond], whole[beyond] = index, place + len(unique)
    return TokenEmbeddings(vectors, None), whole, mask


def _check(words: torch.Tensor, ids: torch.Tensor | None) -> None:
    if words.dim() != 2 or words.is_floating_point() or (words < 0).any():
        raise ValueError(f"word_inputs: expected word numbers of shape [batch, tokens], none negative, "
                         f"got {words.dtype} of shape {tuple(words.shape)}")
    if ids is not None and ids.shape[:2] != words.shape:
        raise ValueError(f"word_inputs: expected a number for each token of ids {tuple(ids.shape[:2])}, "
                         f"got shape {tuple(words.shape)}")
    present = words > 0
    if (present[:, 1:] & ~present[:, :-1]).any():
        raise ValueError("word_inputs: expected every sentence's words before its padding (number 0), "
                         "got a 0 in front of a word")
