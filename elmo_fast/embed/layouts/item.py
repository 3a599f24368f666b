"""A text and what is kept of its vectors, as writers take it; vectors in the type that is stored; opened files."""

import abc
import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from elmo_fast.model.options import ConfigurationError

FLOAT16_MOST = 65504.0


class Item(NamedTuple):
    """A text: what `Form.apply` keeps of its vectors, with targets the positions of their tokens, int64 [n]."""

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
    least, most = map(float, given.aminmax())
    if not (least >= -FLOAT16_MOST and most <= FLOAT16_MOST) and beyond_float16(values).any():
        raise OverflowError("beyond float16")
    return given.half().numpy()


def beyond_float16(values: np.ndarray) -> np.ndarray:
    """Where float16 would hold infinities or the nearest number that it has: bool, in the shape of the values."""
    return np.abs(values) > FLOAT16_MOST


def refused(number: int, values: np.ndarray) -> ConfigurationError:
    """The error for a text, by its number, whose vectors float16 cannot hold."""
    return ConfigurationError(f"dtype: expected vectors up to {FLOAT16_MOST:.0f} for float16, found "
                              f"{np.nanmax(np.abs(values)):.6g} in text {number}; float32 holds them")


def narrowed(number: int, vectors: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`narrow` of the vectors of a text, whose number is in the error."""
    try:
        return narrow(vectors, dtype)
    except OverflowError:
        raise refused(number, vectors) from None


class Source(abc.ABC):
    """An opened file of vectors. Texts are numbered from 0; what a layout does not store raises `LookupError`."""

    layout: str
    form: dict | None = None  # Form.describe, where elmo-fast wrote the file
    fingerprint: dict | None = None
    _name: str  # of the file
    _expected: str  # to read from it, and what was found in its place
    # Errors of NumPy, zipfile and pyarrow for damaged files.
    _damage: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, KeyError, MemoryError, NotImplementedError,
                                            zipfile.BadZipFile)

    @cached_property
    @abc.abstractmethod
    def keys(self) -> list[str]:
        """The keys of the texts."""

    @abc.abstractmethod
    def vectors(self, number: int) -> np.ndarray:
        """What is kept of a text's vectors."""

    def __len__(self) -> int:
        return len(self.keys)

    def text(self, number: int) -> str:
        """The text."""
        raise LookupError("text")

    def tokens(self, number: int) -> list[str]:
        """The text's tokens."""
        raise LookupError("tokens")

    def positions(self, number: int) -> np.ndarray | None:
        """Positions of the tokens whose vectors are kept, int64 [n]; None where all are."""
        return None

    def occurrences(self, word: str) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Number of a text, positions int64 [n] and vectors [n, ..., dim], for every text with kept tokens `word`."""
        for number in range(len(self)):
            tokens, positions = self.tokens(number), self.positions(number)
            places = np.arange(len(tokens)) if positions is None else positions
            rows = [row for row, place in enumerate(places.tolist()) if tokens[place] == word]
            if rows:
                yield number, places[rows], np.moveaxis(self.vectors(number), -2, 0)[rows]

    @abc.abstractmethod
    def close(self) -> None:
        """Close the file."""

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Errors of a damaged file in the body as `ConfigurationError`."""
        try:
            yield
        except (ConfigurationError, FileNotFoundError):
            raise
        except self._damage as error:
            raise ConfigurationError(f"embeddings {self._name}: expected {self._expected} ({error})") from error
