"""A text with its selected vectors, the input of writers, and the conversion of vectors to the stored type."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elmo_fast.errors import ConfigurationError

_OVERFLOW = 65520  # the smallest number that float16 rounds to infinity


class TextVectors(NamedTuple):
    """A text with the vectors that `OutputSpec.apply` selected and, with targets, their positions, int64 [n]."""

    key: str
    text: str
    tokens: Sequence[str]
    positions: np.ndarray | None
    vectors: np.ndarray


def narrow(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert to a contiguous array of a float type; `OverflowError` for values beyond float16. NaN stays NaN.

    To float16 NumPy takes 4 to 6 ns a value.
    """
    values = np.ascontiguousarray(values)
    if dtype != np.float16 or values.dtype not in (np.float32, np.float16) or not values.size:
        return values.astype(dtype, copy=False)
    if not -_OVERFLOW < values.min() <= values.max() < _OVERFLOW and (np.abs(values) >= _OVERFLOW).any():
        raise OverflowError("beyond float16")  # NaN, which fails the first test, is no overflow
    return values.astype(np.float16)


def narrowed(item: TextVectors, dtype: np.dtype) -> np.ndarray:
    """`narrow` the vectors of a text; the error names its key."""
    try:
        return narrow(item.vectors, dtype)
    except OverflowError:
        raise ConfigurationError(f"dtype: expected vectors up to {np.finfo(np.float16).max:.0f} for float16, found "
                                 f"{np.nanmax(np.abs(item.vectors)):.6g} in text {item.key}; float32 holds them"
                                 ) from None
