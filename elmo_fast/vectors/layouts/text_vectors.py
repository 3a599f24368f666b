"""A text and what is kept of its vectors, as writers take it, in the type that is stored."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.errors import ConfigurationError

FLOAT16_MOST = 65504.0


class TextVectors(NamedTuple):
    """A text: what `OutputSpec.apply` keeps of its vectors, with targets the positions of their tokens, int64 [n]."""

    key: str
    text: str
    tokens: Sequence[str]
    positions: np.ndarray | None
    vectors: np.ndarray


def narrow(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values as contiguous ones of a float type; `OverflowError` for those that float16 cannot hold. NaN stays NaN.

    torch converts to float16 thirty times as fast as NumPy.
    """
    values = np.ascontiguousarray(values)
    if dtype != np.float16 or values.dtype != np.float32 or not values.size:
        return values.astype(dtype, copy=False)
    given = torch.from_numpy(values)
    if not fits_float16(given) and beyond_float16(values).any():
        raise OverflowError("beyond float16")
    return given.half().numpy()


def fits_float16(values: torch.Tensor) -> bool:
    """Whether all values are numbers within float16."""
    least, most = map(float, values.aminmax())
    return least >= -FLOAT16_MOST and most <= FLOAT16_MOST


def beyond_float16(values: np.ndarray) -> np.ndarray:
    """Where float16 would hold infinities or the nearest number that it has: bool, in the shape of the values."""
    return np.abs(values) > FLOAT16_MOST


def refused(key: str, values: np.ndarray) -> ConfigurationError:
    """The error for a text, by its key, whose vectors float16 cannot hold."""
    return ConfigurationError(f"dtype: expected vectors up to {FLOAT16_MOST:.0f} for float16, found "
                              f"{np.nanmax(np.abs(values)):.6g} in text {key}; float32 holds them")


def narrowed(item: TextVectors, dtype: np.dtype) -> np.ndarray:
    """`narrow` of the vectors of a text, whose key is in the error."""
    try:
        return narrow(item.vectors, dtype)
    except OverflowError:
        raise refused(item.key, item.vectors) from None
