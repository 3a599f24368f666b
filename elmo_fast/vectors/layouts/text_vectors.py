"""A text with its selected vectors, the input of writers, and the conversion of vectors to the stored type."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elmo_fast.errors import ConfigurationError


class TextVectors(NamedTuple):
    """A text with the vectors that `OutputSpec.apply` selected and, with targets, their positions, int64 [n]."""

    key: str
    text: str
    tokens: Sequence[str]
    positions: np.ndarray | None
    vectors: np.ndarray


def narrow(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert to a contiguous array of a float type; `OverflowError` for values beyond float16. NaN stays NaN."""
    values = np.ascontiguousarray(values)
    if dtype != np.float16 or values.dtype not in (np.float32, np.float16) or not values.size:
        return values.astype(dtype, copy=False)
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if np.isinf(half).any():  # NaN is no overflow
        raise OverflowError("beyond float16")
    return half


def narrowed(item: TextVectors, dtype: np.dtype) -> np.ndarray:
    """`narrow` the vectors of a text; the error names its key."""
    try:
        return narrow(item.vectors, dtype)
    except OverflowError:
        raise ConfigurationError(f"dtype: expected vectors up to {np.finfo(np.float16).max:.0f} for float16, found "
                                 f"{np.nanmax(np.abs(item.vectors)):.6g} in text {item.key}; float32 holds them"
                                 ) from None
