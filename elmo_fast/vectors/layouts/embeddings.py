"""`Embeddings`: a file or directory of vectors, in any layout, as a sequence of arrays."""

import abc
import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

from elmo_fast.arguments import LAYERS, SEQVEC_LAYERS, STORAGES
from elmo_fast.errors import ConfigurationError, parsing
from elmo_fast.vectors.spec import POOLS


class Embeddings(Sequence):
    """The vectors of texts, in order: `[i]` is the array that `LoadedElmo.embed` returned, in the stored type.

    Shape [layers, tokens, 2 P]; without the first axis if layers were mixed, without the token axis if tokens were
    pooled; with targets, only target tokens. Indices are from 0, or negative from the end. Reading data that a layout
    does not store, such as texts in `.npz`, raises `ConfigurationError`. Pickling stores the path: a copy in another
    process opens the file again.

    `keys` has the key of every text: its number, its identifier, or the sentence itself. `layout` is a name that
    `--layout` accepts. `fingerprint` describes the model and the settings that made the vectors; None if not stored.

    Subclasses read a text by its number in `_vectors`, `_text`, `_tokens` and `_positions`, and raise `LookupError` for
    data that the layout does not store.
    """

    keys: list[str]
    layout: str
    fingerprint: dict | None = None
    form: dict | None = None  # `OutputSpec.describe`, if elmo-fast wrote the file
    _name: str  # of the file
    _expected: str  # for errors: the expected content, and what a damaged file has instead

    @property
    def layers(self) -> str | list[float] | None:
        """`all`, `top`, `average`, or the factors of the layers; None if not stored."""
        return self.form["layers"] if self.form else None

    @property
    def pool(self) -> str | None:
        """How tokens were pooled; None if they were not, or if not stored."""
        return self.form["pool"] if self.form else None

    @property
    def dtype(self) -> np.dtype:
        """The type of the vectors."""
        if self.form:
            return np.dtype(self.form["dtype"])
        return self._vectors(0).dtype if len(self) else np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self._vectors(number) for number in range(*index.indices(len(self)))]
        return self._vectors(self._number(index))

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self._vectors, range(len(self)))

    def by_key(self, key: str) -> np.ndarray:
        """The vectors of the first text with a key; `KeyError` if there is none."""
        return self._vectors(self._numbers[key])

    def text(self, index: int) -> str:
        """The text."""
        number = self._number(index)
        with self._requires("text"):
            return self._text(number)

    def tokens(self, index: int) -> list[str]:
        """The text's tokens."""
        number = self._number(index)
        with self._requires("tokens"):
            return self._tokens(number)

    def positions(self, index: int) -> np.ndarray | None:
        """Positions in the text of the tokens whose vectors are stored, int64 [n]; None if all are stored."""
        return self._positions(self._number(index))

    def occurrences(self, word: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The vectors of all n tokens equal to `word`, [n, ..., 2 P], and the (text, position) of every such token."""
        if self.pool:
            raise ConfigurationError(f"embeddings {self._name}: expected vectors of tokens, found pooled ones")
        arrays: list[np.ndarray] = []
        places: list[tuple[int, int]] = []
        for number in range(len(self)):
            tokens, stored = self.tokens(number), self._positions(number)
            positions = list(range(len(tokens)) if stored is None else stored.tolist())
            self.check_positions(number, tokens, positions)
            rows = [row for row, position in enumerate(positions) if tokens[position] == word]
            if rows:
                vectors = np.moveaxis(self._vectors(number), -2, 0)
                self.check_vectors(number, vectors, positions)
                arrays.append(vectors[rows])
                places += [(number, positions[row]) for row in rows]
        if arrays:
            return np.concatenate(arrays), places
        shape = np.moveaxis(self[0], -2, 0).shape[1:] if len(self) else ()
        return np.empty((0, *shape), self.dtype), places

    def check_positions(self, number: int, tokens: Sequence[str], positions: Sequence[int]) -> None:
        """Raise `ConfigurationError` unless all positions are within the tokens of text `number`."""
        if len(positions) and not (min(positions) >= 0 and max(positions) < len(tokens)):
            raise ConfigurationError(f"embeddings {self._name}: positions: expected positions of the {len(tokens)} "
                                     f"tokens of text {number}, found others: the file is damaged")

    def check_vectors(self, number: int, vectors: np.ndarray, positions: Sequence[int]) -> None:
        """Raise `ConfigurationError` unless text `number` has as many rows of vectors as positions."""
        if len(vectors) != len(positions):
            raise ConfigurationError(f"embeddings {self._name}: expected vectors of {len(positions)} tokens of text "
                                     f"{number}, found {len(vectors)}")

    @abc.abstractmethod
    def close(self) -> None:
        """Close the file; arrays that were read stay valid."""
        self._expected = "an open file, got one that was closed"

    def __enter__(self) -> "Embeddings":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __reduce__(self):
        return type(self), (self._name,)

    def __repr__(self) -> str:
        return f"<Embeddings of {len(self)} texts, {self.layout}: {self._name}>"

    @abc.abstractmethod
    def _vectors(self, number: int) -> np.ndarray:
        """Read the stored vectors of a text."""

    def _text(self, number: int) -> str:
        raise LookupError

    def _tokens(self, number: int) -> list[str]:
        raise LookupError

    def _positions(self, number: int) -> np.ndarray | None:
        return None

    def _restore_shape(self, rows: np.ndarray) -> np.ndarray:
        """Copy a text's rows, one per token, into the shape that `OutputSpec.apply` returned."""
        if self.pool:
            return np.array(rows[0])
        return np.array(rows.swapaxes(0, 1), order="C") if rows.ndim == 3 else np.array(rows)

    def _describe(self, about: Any) -> None:
        """Set form and fingerprint from a file's metadata, after checking it."""
        form, fingerprint = (about.get(name) for name in ("form", "fingerprint")) if isinstance(about, dict) else (0, 0)
        fits = (isinstance(form, dict) and form.get("dtype") in STORAGES and form.get("pool", 0) in (None, *POOLS)
                and _are_layers(form.get("layers")) and isinstance(form.get("targets"), bool)
                and isinstance(fingerprint, (dict, type(None))))
        if not fits:
            raise ConfigurationError(f"embeddings {self._name}: expected layers, pool, dtype and fingerprint that "
                                     f"elmo-fast writes, found {about!r:.160}")
        self.form, self.fingerprint = form, fingerprint

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {key: number for number, key in reversed(list(enumerate(self.keys)))}

    def _number(self, index: int) -> int:
        return range(len(self))[index]  # IndexError beyond the end

    @contextlib.contextmanager
    def _requires(self, content: str) -> Iterator[None]:
        try:
            yield
        except LookupError:
            raise ConfigurationError(f"embeddings {self._name}: expected a file that stores {content}, found none "
                                     f"({self.layout}); parquet and arrow store them") from None

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """A context that converts errors of a damaged file to `ConfigurationError`."""
        return parsing(f"embeddings {self._name}", self._expected)


def _are_layers(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(factor, (int, float)) for factor in value)
    return value in (*LAYERS, *SEQVEC_LAYERS) if isinstance(value, str) else type(value) is int and value >= 0
