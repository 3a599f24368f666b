"""`TokenTable`: vectors of tokens by row, of a fixed vocabulary or of a cache, so that no token is encoded twice."""

import os
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch

from elmo_fast.arguments import UNKNOWN, check_choice, local_path, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.files import stops
from elmo_fast.model.token_table.file import TableHeader, read_table, words_of, write_table
from elmo_fast.ops.device import available_device, to_device
from elmo_fast.ops.precision import check_precision
from elmo_fast.text.batching import not_a_string
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN

_ROWS_AT_ONCE = 1 << 14


class Sentence(Protocol):
    """A sentence whose tokens are `rows` of a table."""

    rows: np.ndarray


class TokenTable:
    """Vectors of words: row k of `vectors` [V, P] (float32 or float16) belongs to `words[k]`.

    Token ids are rows + 1, and 0 is padding, as in bilm-tf. `words` is None if only ids are known. `fingerprint` is the
    fingerprint of the model that computed the vectors (`BiLm.fingerprint()`), None if it is not recorded, as in
    bilm-tf's files. `precision` is the precision of the vectors: a model of higher precision refuses the table.
    These attributes must not be changed.

    `unknown` chooses the vector of a word outside the table: with `encode` the char encoder computes it; `error` raises
    a `ValueError` that names the word; `unk` takes the vector of `<UNK>`, as in bilm-tf.

    Without `vectors` the table is empty, a cache: `number` adds tokens, and `append` their vectors.

    A table may serve several models and copies of a model; copying a model does not copy its table.
    """

    def __init__(self, vectors: np.ndarray | torch.Tensor | None = None, words: Sequence[str] | None = None,
                 fingerprint: str | None = None, *, unknown: str = "encode", precision: str = "highest"):
        self._memory = torch.empty(0, 0) if vectors is None else _checked(torch.as_tensor(vectors).detach())
        self._encoded = len(self._memory)  # rows with a vector; the memory of a cache has room for more
        self.fingerprint, self.precision = fingerprint, check_precision(precision)
        self.words = None if words is None else list(words)
        if vectors is None:
            self.words = self.words or []
        if self.words is not None and len(self.words) != len(self._memory):
            raise ValueError(f"words: expected one for each of {len(self._memory)} vectors, got {len(self.words)}")
        self._rows = _Rows([] if self.words is None else self.words)
        self._path: str | None = None
        self._key: Hashable = None
        self._most_in_flight = 0  # tokens that were in flight when a full cache was last reduced
        self.unknown = unknown

    @classmethod
    def open(cls, path: str | os.PathLike, vocabulary: str | os.PathLike | Iterable[str] | None = None, *,
             device: torch.device | str | None = None, unknown: str = "encode") -> "TokenTable":
        """Read a table from a file of ours or of bilm-tf, memory-mapped, or onto `device` (`"cpu"`, `"cuda"`).

        `vocabulary` is the vocabulary file of a table that bilm-tf wrote, or its words in order. Our files contain
        their vocabulary; a different `vocabulary` is refused.
        """
        header, vectors = read_table(path, None if device is None else available_device(device))
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
        table._path = os.path.abspath(local_path(path)) if device is None else None
        return table

    def save(self, path: str | os.PathLike) -> None:
        """Write the table; the file is written atomically."""
        words = None if self.words is None else self.words[: self._encoded]
        header = TableHeader(tuple(self.encoded.shape), self.storage, words, self.fingerprint, self.precision)
        write_table(path, header, (block.cpu().numpy() for block in stops.checked(self.encoded.split(_ROWS_AT_ONCE))))

    def __len__(self) -> int:
        return self._encoded if self.words is None else len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._rows

    @property
    def encoded(self) -> torch.Tensor:
        """The vectors of the rows that have one, [N, P] in the table's type."""
        return self._memory[: self._encoded]

    @property
    def dim(self) -> int:
        """Values of a vector, P."""
        return self._memory.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the vectors, the CPU if they are memory-mapped."""
        return self._memory.device

    @property
    def storage(self) -> str:
        """The name of the vectors' type."""
        return str(self._memory.dtype).removeprefix("torch.")

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

    def vectors(self, rows: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Vectors of rows, int64 [N] -> float32 [N, P], on the table's device."""
        rows = torch.as_tensor(rows, device=self.device)
        return self.encoded.index_select(0, rows).float()

    def number(self, tokens: Sequence[str], boundaries: Sequence[str] = ()) -> np.ndarray:
        """Rows of a sentence's tokens, int32 [N], `boundaries` (two tokens, or none) around them; adds new tokens.

        `ValueError` for tokens that are no strings.
        """
        known = len(self.words)
        try:
            bounded = (*boundaries[:1], *tokens, *boundaries[1:])
            return np.fromiter(map(self._rows.__getitem__, bounded), np.int32, len(bounded))
        except (TypeError, ValueError) as error:
            self._replace_words(self.words[:known])
            if isinstance(error, TypeError):
                raise not_a_string(error) from error
            raise

    def unencoded(self, most: int) -> list[str]:
        """At most `most` tokens without a vector, in the order in which `append` takes their vectors."""
        return self.words[self._encoded : self._encoded + most]

    @torch.inference_mode(False)  # a later call may write where this one does
    def append(self, vectors: torch.Tensor) -> None:
        """Add the vectors [N, P] of the next tokens of `unencoded`."""
        known, count = self._encoded, self._encoded + len(vectors)
        if not known:
            self._memory, self._encoded = vectors, count
            return
        if count > len(self._memory):
            larger = vectors.new_empty(2 * count, vectors.shape[1])
            larger[:known] = self.encoded
            self._memory = larger
        self._memory[known:count] = vectors
        self._encoded = count

    @torch.inference_mode(False)
    def reduce(self, capacity: int, in_flight: Sequence[Sentence]) -> None:
        """Reduce a cache of more than `capacity` tokens to those of sentences `in_flight`; renumber their `rows`."""
        if len(self) <= max(capacity, 2 * self._most_in_flight):
            return
        rows = self._keep(in_flight)
        self._memory = self._memory[to_device(rows, self.device).long()]
        self._encoded = self._most_in_flight = len(rows)

    def check(self, key: Hashable, in_flight: Sequence[Sentence]) -> None:
        """Drop the vectors of a cache unless they were computed under this `key`; renumber the sentences' `rows`."""
        if self._encoded and key != self._key:
            self._keep(in_flight)
            self._memory, self._encoded, self._most_in_flight = torch.empty(0, 0), 0, 0
        self._key = key

    def _keep(self, in_flight: Sequence[Sentence]) -> np.ndarray:
        """Keep the tokens of the sentences `in_flight`, and renumber the sentences' `rows`; return the old rows."""
        rows = np.concatenate([np.empty(0, np.int32), *(sentence.rows for sentence in in_flight)])
        kept, renumbered = np.unique(rows, return_inverse=True)
        self._replace_words([self.words[row] for row in kept])
        ends = np.cumsum([len(sentence.rows) for sentence in in_flight])[:-1]
        for sentence, rows in zip(in_flight, np.split(renumbered.astype(np.int32), ends)):
            sentence.rows = rows
        return kept

    def _replace_words(self, words: list[str]) -> None:
        self.words, self._rows = words, _Rows(words)

    def __deepcopy__(self, memo) -> "TokenTable":
        return self

    def __getstate__(self) -> dict:
        """A memory-mapped table is pickled as its path."""
        return self.__dict__ if self._path is None else {**self.__dict__, "_memory": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if self._memory is None:
            self._memory = read_table(self._path).vectors


class _Rows(dict[str, int]):
    """Rows by word, of equal words the last; `[]` adds an unknown word to `words`, and gives it the next row."""

    def __init__(self, words: list[str]):
        super().__init__(zip(words, range(len(words))))
        self._words = words

    def __missing__(self, word: str) -> int:
        if not isinstance(word, str):
            raise ValueError(f"token: expected a string, got {type(word).__name__} ({shown(word)})")
        row = self[word] = len(self._words)
        self._words.append(word)
        return row


def _checked(vectors: torch.Tensor) -> torch.Tensor:
    if vectors.dim() != 2 or 0 in vectors.shape or vectors.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"vectors: expected float32 or float16 of shape [words, values], got {vectors.dtype} of shape "
                         f"{tuple(vectors.shape)}")
    return vectors
