"""A text with its selected vectors, the input of writers, and the conversion of vectors to the stored type."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from elmo_fast.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

FLOAT16_MOST = 65504.0


class TextVectors(NamedTuple):
    """A text with the vectors that `OutputSpec.apply` selected and, with targets, their positions, int64 [n]."""

    key: str
    text: str
    tokens: Sequence[str]
    positions: np.ndarray | None
    vectors: np.ndarray


def narrow(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert to a contiguous array of a float type; `OverflowError` for values beyond float16. NaN stays NaN.

    torch converts to float16 thirty times as fast as NumPy.
    """
    values = np.ascontiguousarray(values)
    if dtype != np.float16 or values.dtype not in (np.float32, np.float16) or not values.size:
        return values.astype(dtype, copy=False)
    import torch  # it is loaded where vectors are computed, but not where an output is only checked

    given = torch.from_numpy(values)
    if values.dtype == np.float16:  # rounded on a GPU, where values beyond float16 become infinite
        if given.isinf().any():
            raise OverflowError("beyond float16")
        return values
    if not fits_float16(given) and beyond_float16(values).any():
        raise OverflowError("beyond float16")
    return given.half().numpy()


def fits_float16(values: "torch.Tensor") -> bool:
    """Whether all values are within the range of float16; False if there is a NaN."""
    least, most = map(float, values.aminmax())
    return least >= -FLOAT16_MOST and most <= FLOAT16_MOST


def beyond_float16(values: np.ndarray) -> np.ndarray:
    """Whether each value is beyond the largest finite float16: bool, in the shape of the values."""
    return np.abs(values) > FLOAT16_MOST


def overflow_error(key: str, values: np.ndarray) -> ConfigurationError:
    """The error for the text with this key, whose vectors are beyond float16."""
    return ConfigurationError(f"dtype: expected vectors up to {FLOAT16_MOST:.0f} for float16, found "
                              f"{np.nanmax(np.abs(values)):.6g} in text {key}; float32 holds them")


def narrowed(item: TextVectors, dtype: np.dtype) -> np.ndarray:
    """`narrow` the vectors of a text; the error names its key."""
    try:
        return narrow(item.vectors, dtype)
    except OverflowError:
        raise overflow_error(item.key, item.vectors) from None
