"""`TokenTable`: the vectors of a fixed vocabulary, so that none of its words is encoded."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from elmo_fast.arguments import UNKNOWN, check_choice, local_path
from elmo_fast.engine.precision import check_precision, lowest
from elmo_fast.engine.table_file import TableHeader, read_table, words_of, write_table
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.text.batching import BOUNDARIES
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN

_ROWS_AT_ONCE = 1 << 14


class TokenTable:
    """Vectors of words: row k of `vectors` [V, P] (float32 or float16) belongs to `words[k]`.

    Token ids are rows + 1, and 0 is padding, as in bilm-tf. `words` is None if only ids are known. `fingerprint` is the
    fingerprint of the model that computed the vectors (`BiLm.fingerprint()`), None if it is not recorded, as in
    bilm-tf's files. `precision` is the precision of the vectors: a model of higher precision refuses the table.
    These attributes must not be changed.

    `unknown` chooses the vector of a word outside the table: with `encode` the char encoder computes it; `error` raises
    a `ValueError` that names the word; `unk` takes the vector of `<UNK>`, as in bilm-tf.

    A table may serve several models and copies of a model; copying a model does not copy its table.
    """

    def __init__(self, vectors: Any, words: Sequence[str] | None = None, fingerprint: str | None = None, *,
                 unknown: str = "encode", precision: str = "highest"):
        self._vectors = _checked(vectors)
        self.fingerprint, self.precision = fingerprint, check_precision(precision)
        self.words = None if words is None else list(words)
        if self.words is not None and len(self.words) != len(self._vectors):
            raise ValueError(f"words: expected one for each of {len(self._vectors)} vectors, got {len(self.words)}")
        self._rows = {word: row for row, word in enumerate(self.words or ())}
        self._path: str | None = None
        self.unknown = unknown

    @classmethod
    def open(cls, path: str | os.PathLike, vocabulary: str | os.PathLike | Iterable[str] | None = None, *,
             in_memory: bool = False, unknown: str = "encode") -> "TokenTable":
        """Read a table from a file of ours or of bilm-tf, memory-mapped unless `in_memory`.

        `vocabulary` is the vocabulary file of a table that bilm-tf wrote, or its words in order. Our files contain
        their vocabulary; a different `vocabulary` is refused.
        """
        header, vectors = read_table(path, in_memory)
        words = header.words
        if vocabulary is not None:
            given = words_of(vocabulary)
            if words is not None and given != words:
                raise ConfigurationError(f"vocabulary: expected the vocabulary of the token table {os.fspath(path)} "
                                         f"({len(words)} words), got another ({len(given)} words)")
            if len(given) != len(vectors):
                raise ConfigurationError(f"vocabulary: expected a word for each of the {len(vectors)} vectors "
                                         f"of {os.fspath(path)}, got {len(given)} words")
            words = given
        table = cls(vectors, words, header.fingerprint, unknown=unknown, precision=header.precision)
        table._path = None if in_memory else os.path.abspath(local_path(path))
        return table

    def save(self, path: str | os.PathLike) -> None:
        """Write the table; the file is written atomically."""
        header = TableHeader(self._vectors.shape, self.storage, self.words, self.fingerprint, self.precision)
        starts = range(0, len(self), _ROWS_AT_ONCE)
        write_table(path, header, stops.checked(self._vectors[k : k + _ROWS_AT_ONCE] for k in starts))

    def check(self, dim: int, precision: str, boundaries: Sequence[str], fingerprint: Callable[[], str]) -> None:
        """Raise `ConfigurationError` unless this is a table of a model with these properties.

        Of a table without a fingerprint, as bilm-tf writes it, only the shape can be checked.
        """
        if tuple(boundaries) != BOUNDARIES:
            raise ConfigurationError("token_table: expected None for a model whose sentences do not run from <S> to "
                                     "</S>, got a token table")
        if self.dim != dim:
            raise ConfigurationError(f"token_table: expected vectors of {dim} values, got {self.dim}")
        if self.fingerprint is not None and self.fingerprint != (expected := fingerprint()):
            raise ConfigurationError(f"token_table: expected the table of this model (fingerprint {expected}), "
                                     f"got one of another model (fingerprint {self.fingerprint})")
        self.check_precision(precision)

    def check_precision(self, precision: str) -> None:
        """Raise `ConfigurationError` for a table that was computed in less than `precision`."""
        if lowest(self.precision, precision) != precision:
            raise ConfigurationError(f"token_table: expected a table computed in {precision!r}, the model's precision, "
                                     f"got one computed in {self.precision!r}; build it again with this model")

    def __len__(self) -> int:
        return len(self._vectors)

    def __contains__(self, word: str) -> bool:
        return word in self._rows

    @property
    def dim(self) -> int:
        """Values of a vector, P."""
        return self._vectors.shape[1]

    @property
    def storage(self) -> str:
        """The name of the vectors' type."""
        return self._vectors.dtype.name

    @property
    def unknown(self) -> str:
        """`encode`, `error` or `unk`: the treatment of words outside the table; may be set."""
        return self._unknown

    @unknown.setter
    def unknown(self, unknown: str) -> None:
        if check_choice("unknown", unknown, UNKNOWN) == "unk" and UNKNOWN_TOKEN not in self._rows:
            raise ConfigurationError(f"unknown: expected a token table with the word {UNKNOWN_TOKEN} for 'unk', "
                                     "got one without it")
        self._unknown = unknown

    def rows(self, words: Sequence[str | None]) -> np.ndarray:
        """Rows of words, int64 [N]; -1 for a word outside the table, and for None."""
        if self.words is None:
            raise ConfigurationError("token table: expected a table with a vocabulary, to look up words, got one "
                                     "without (TokenTable.open(path, vocabulary) adds a vocabulary)")
        return np.fromiter((self._rows.get(word, -1) for word in words), dtype=np.int64, count=len(words))

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """Token ids of words, int64 [N]: rows + 1.

        A word outside the table has the id of `<UNK>` with `unknown="unk"`, and otherwise raises a `ValueError`.
        """
        rows = self.rows(words)
        missing = np.flatnonzero(rows < 0)
        if missing.size and self.unknown != "unk":
            unique = list(dict.fromkeys(words[k] for k in missing))
            named = ", ".join(f"{word!r:.60}" for word in unique[:5]) + (", ..." if len(unique) > 5 else "")
            raise ValueError(f"token table: expected words of the table ({len(self)} words), got {named}")
        rows[missing] = self._rows.get(UNKNOWN_TOKEN, -1)
        return rows + 1

    def vectors(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Vectors of rows, int [N] -> float32 [N, P]."""
        return self._vectors[np.asarray(rows, np.int64)].astype(np.float32, copy=False)

    def complete(self, words: Sequence[str | None], encode: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Vectors [N, P] of words; `unknown` decides for words outside the table.

        A word is None if its ids have no spelling; `encode` returns the vectors of the words at some positions.
        """
        rows = self.rows(words)
        missing = np.flatnonzero(rows < 0)
        if missing.size and self.unknown != "encode":
            rows[missing] = self.ids([words[k] or "(no text)" for k in missing]) - 1
            missing = missing[:0]
        vectors = self.vectors(rows)
        if missing.size:
            vectors[missing] = encode(missing)
        return vectors

    def __deepcopy__(self, memo) -> "TokenTable":
        return self

    def __getstate__(self) -> dict:
        """A memory-mapped table is pickled as its path."""
        return self.__dict__ if self._path is None else {**self.__dict__, "_vectors": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if self._vectors is None:
            self._vectors = read_table(self._path).vectors


def _checked(given: Any) -> np.ndarray:
    """The vectors as an array, copied unless nobody can write to them, or they are a memory-mapped file's."""
    vectors = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    if vectors.ndim != 2 or 0 in vectors.shape or vectors.dtype not in (np.float32, np.float16):
        raise ValueError(f"vectors: expected float32 or float16 of shape [words, values], got {vectors.dtype} of shape "
                         f"{vectors.shape}")
    is_fixed = not vectors.flags.writeable and (vectors.flags.owndata or getattr(given, "mode", "") == "r")  # a memmap
    return vectors if is_fixed else vectors.copy()
