"""The comparison of two texts: cosines and dot products between the vectors of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elmo_fast.arguments import FREE_STATES, FreeState, check_choice, shown
from elmo_fast.embed.api import Given, LoadedElmo, tokens_of
from elmo_fast.text.tokenizers import Tokenizer, find_tokenizer


@dataclass(frozen=True)
class Comparison:
    """The tokens of two texts and their vectors, float32 [layers, tokens, dim]."""

    first_tokens: Sequence[str]
    second_tokens: Sequence[str]
    first: np.ndarray
    second: np.ndarray

    def layers(self) -> np.ndarray:
        """Cosines of every pair of tokens in each layer: float32 [layers, T1, T2], NaN for a vector of zeros."""
        return np.stack([cosines(a, b) for a, b in zip(self.first, self.second)])

    def mixed(self, weights: Sequence[float]) -> np.ndarray:
        """Cosines of a mixture of the layers, with a weight for each layer: float32 [T1, T2]."""
        factors = np.asarray(weights, np.float64)
        if factors.shape != (len(self.first),):
            raise ValueError(f"weights: expected {len(self.first)} numbers, one for each layer, got shape "
                             f"{factors.shape}")
        if not np.isfinite(factors).all():
            raise ValueError(f"weights: expected finite numbers, got {shown(weights)}")
        return cosines(np.tensordot(factors, self.first, axes=1), np.tensordot(factors, self.second, axes=1))

    def products(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Dot products between layers, float64: of pairs of tokens from both texts [layers, layers, T1, T2], and of
        every token with itself, [layers, layers, T1] and [layers, layers, T2].

        With weights w, the cosine of a mixture is `w cross w / sqrt((w first w) (w second w))`.
        """
        first, second = self._in_float64()
        cross = np.tensordot(first, second, axes=(2, 2)).swapaxes(1, 2)
        return cross, *(np.einsum("ktd,ltd->klt", layers, layers) for layers in (first, second))

    def mean_products(self) -> np.ndarray:
        """Dot products between layers, float64 [3, layers, layers], of the means over the tokens: of both texts, of the
        first with itself, and of the second with itself.
        """
        first, second = (layers.mean(axis=1) for layers in self._in_float64())
        return np.stack([first @ second.T, first @ first.T, second @ second.T])

    def _in_float64(self) -> tuple[np.ndarray, np.ndarray]:
        return self.first.astype(np.float64), self.second.astype(np.float64)


def compare(elmo: LoadedElmo, first: Given, second: Given, state: FreeState = "warm",
            tokenizer: str | Tokenizer = "auto") -> Comparison:
    """Embed two texts, strings or lists of tokens; `ValueError` for a text without tokens.

    `state` is warm or zero, `tokenizer` as in `LoadedElmo.embed`.
    """
    check_choice("state", state, FREE_STATES)
    split = find_tokenizer(tokenizer)
    rows, columns = list(tokens_of(first, "first", split)), list(tokens_of(second, "second", split))
    for name, tokens in (("first", rows), ("second", columns)):
        if not tokens:
            raise ValueError(f"{name}: expected a text with at least one token, got an empty one")
    return Comparison(rows, columns, *elmo.embed([rows, columns], state=state))


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines of the rows of two arrays [..., dim], summed in float64: float32 [M, N], NaN for a row of zeros."""
    return (unit(first, np.float64) @ unit(second, np.float64).T).clip(-1, 1).astype(np.float32)


def unit(vectors: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    """Vectors [..., dim] scaled to length 1; a vector of zeros becomes NaN."""
    vectors = np.asarray(vectors, dtype)
    with np.errstate(invalid="ignore"):
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
