"""`TokenTable`: the vectors of a fixed vocabulary, so that no token is encoded twice."""

import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from elmo_fast.arguments import UNKNOWN, check_choice, local_path, shown
from elmo_fast.errors import ConfigurationError
from elmo_fast.files.seal import Blocks
from elmo_fast.model.token_table.file import read_table, words_of, write_table
from elmo_fast.ops.device import available_device
from elmo_fast.ops.precision import check_precision, lowest
from elmo_fast.text import characters
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN

GROWTH = 1 << 16
_INDEXED_AT_ONCE = 1 << 15


class TokenTable:
    """Vectors of words: row k of `vectors` [V, P] (float32 or float16) belongs to `words[k]`.

    Token ids are rows + 1, and 0 is padding, as in bilm-tf. `words` is None if only ids are known. `fingerprint` is the
    fingerprint of the model that computed the vectors (`BiLm.fingerprint()`), None if it is not recorded, as in
    bilm-tf's files. `precision` is the lowest precision of any vector: a model of higher precision refuses the table.
    `dim` is P, `storage` the name of the vectors' type, `device` their device (the CPU for memory-mapped vectors).
    These attributes must not be changed.

    `unknown` chooses the vector of a word outside the table: with `encode` the char encoder computes it; `error` raises
    a `ValueError` that names the word; `unk` takes the vector of `<UNK>`, as in bilm-tf. With `grow` encoded words join
    the table: at most 65,536 words, or as many as `grow` says; they are not written to the table's file.

    A table may serve several models and copies of a model; copying a model does not copy its table.
    """

    def __init__(self, vectors: np.ndarray | torch.Tensor, words: Sequence[str] | None = None,
                 fingerprint: str | None = None, *, unknown: str = "encode", grow: bool | int = False,
                 precision: str = "highest"):
        self._base = torch.as_tensor(vectors).detach()
        if self._base.dim() != 2 or 0 in self._base.shape or self._base.dtype not in (torch.float32, torch.float16):
            raise ValueError(f"vectors: expected float32 or float16 of shape [words, values], got {self._base.dtype} "
                             f"of shape {tuple(self._base.shape)}")
        self.dim, self.device = self._base.shape[1], self._base.device
        self.storage = str(self._base.dtype).removeprefix("torch.")
        self.fingerprint, self.precision = fingerprint, check_precision(precision)
        self.words = None if words is None else list(words)
        if self.words is not None and len(self.words) != len(self._base):
            raise ValueError(f"words: expected one for each of {len(self._base)} vectors, got {len(self.words)}")
        if not isinstance(grow, (bool, int)) or grow < 0:
            raise ValueError(f"grow: expected True, False or a number of words, got {shown(grow)}")
        self._rows = {word: row for row, word in enumerate(self.words or [])}
        self._growth = GROWTH * grow if isinstance(grow, bool) else grow
        self._joined, self._grown = self._base.new_empty(0, self.dim), 0  # vectors and number of joined words
        self._path: str | None = None
        self._blocks: Blocks | None = None  # of memory-mapped vectors with checksums
        self.unknown = unknown
        self.__setstate__({})

    @classmethod
    def open(cls, path: str | os.PathLike, vocabulary: str | os.PathLike | Iterable[str] | None = None, *,
             device: torch.device | str | None = None, unknown: str = "encode",
             grow: bool | int = False) -> "TokenTable":
        """Read a table from a file of ours or of bilm-tf, memory-mapped, or onto `device` (`"cpu"`, `"cuda"`).

        `vocabulary` is the vocabulary file of a table that bilm-tf wrote, or its words in order. Our files contain
        their vocabulary; a different `vocabulary` is refused.
        """
        vectors, words, fingerprint, precision, blocks = read_table(
            path, None if device is None else available_device(device))
        if vocabulary is not None:
            given = words_of(vocabulary)
            if words is not None and given != words:
                raise ConfigurationError(f"vocabulary: expected the vocabulary of the token table {os.fspath(path)} "
                                         f"({len(words)} words), got another ({len(given)} words)")
            if len(given) != len(vectors):
                raise ConfigurationError(f"vocabulary: expected a word for each of the {len(vectors)} vectors "
                                         f"of {os.fspath(path)}, got {len(given)} words")
            words = given
        table = cls(vectors, words, fingerprint, unknown=unknown, grow=grow, precision=precision)
        table._path, table._blocks = os.path.abspath(local_path(path)) if device is None else None, blocks
        return table

    def save(self, path: str | os.PathLike) -> None:
        """Write the table, joined words included; the file is written atomically."""
        with self._lock:
            if self._blocks:
                self._blocks.check()
            vectors = torch.cat([self._base, self._joined[: self._grown]]) if self._grown else self._base
            write_table(path, vectors, self.words, self.fingerprint, self.precision)

    def __len__(self) -> int:
        return len(self._base) + self._grown

    def __contains__(self, word: str) -> bool:
        return word in self._rows

    @property
    def grows(self) -> bool:
        """Whether encoded words can still join the table."""
        return self.words is not None and self._grown < self._growth

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

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """Rows of words, int64 [N]; -1 for a word outside the table."""
        self._require_words()
        return np.fromiter((self._rows.get(word, -1) for word in words), dtype=np.int64, count=len(words))

    def rows_of_characters(self, ids: torch.Tensor) -> np.ndarray:
        """Rows of tokens given as the char encoder's ids, int [N, C] on the CPU -> int64 [N]; -1 outside the table."""
        self._require_words()
        size = ids.shape[1]
        with self._lock:
            if self._indexed[0] != size:
                self._index, self._indexed = {}, (size, 0)
            for first in range(self._indexed[1], len(self.words), _INDEXED_AT_ONCE):
                words = self.words[first : first + _INDEXED_AT_ONCE]
                encoded = characters.to_model_ids(characters.encode_tokens(words, size))
                self._index.update(zip(_keys(encoded), itertools.count(first)))
                self._indexed = size, first + len(words)
            rows = (self._index.get(key, -1) for key in _keys(ids.numpy()))
            return np.fromiter(rows, dtype=np.int64, count=len(ids))

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """Token ids of words, int64 [N]: rows + 1.

        A word outside the table has the id of `<UNK>` with `unknown="unk"`, and otherwise raises a `ValueError`.
        """
        rows = self.rows(words)
        missing = np.flatnonzero(rows < 0)
        if missing.size and self.unknown != "unk":
            unique = list(dict.fromkeys(words[k] for k in missing))
            shown = ", ".join(f"{word!r:.60}" for word in unique[:5]) + (", ..." if len(unique) > 5 else "")
            raise ValueError(f"token table: expected words of the table ({len(self)} words), got {shown}")
        rows[missing] = self._rows.get(UNKNOWN_TOKEN, -1)
        return rows + 1

    def vectors(self, rows: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Vectors of rows, int64 [N] -> float32 [N, P], on the table's device; an error if the file is damaged."""
        rows = torch.as_tensor(rows, device=self.device)
        joined = rows >= len(self._base)
        if self._blocks and self._blocks.left:
            self._blocks.check(rows[~joined].numpy())
        if not self._grown or not joined.any():
            return self._base.index_select(0, rows).float()
        vectors = self._base.index_select(0, rows.masked_fill(joined, 0)).float()
        vectors[joined] = self._joined[rows[joined] - len(self._base)].float()
        return vectors

    def add(self, words: Sequence[str], vectors: torch.Tensor, precision: str = "highest") -> None:
        """Add words outside the table, up to its capacity, with vectors [N, P] computed in `precision`."""
        with self._lock:
            new = {word: k for k, word in enumerate(words) if word not in self._rows}
            joining = list(new.items())[: self._growth - self._grown]
            if not joining or self.words is None:
                return
            count = self._grown + len(joining)
            if count > len(self._joined):
                larger = self._base.new_empty(min(2 * count, self._growth), self.dim)
                larger[: self._grown] = self._joined[: self._grown]
                self._joined = larger
            positions = torch.tensor([k for _, k in joining], device=vectors.device)
            self._joined[self._grown : count] = vectors[positions].detach().to(self._base)
            self.precision = lowest(self.precision, precision)
            self.words.extend(word for word, _ in joining)
            first, self._grown = len(self), count
            self._rows.update((word, first + k) for k, (word, _) in enumerate(joining))

    def _require_words(self) -> None:
        if self.words is None:
            raise ConfigurationError("token table: expected a table with a vocabulary, to look up words, got one "
                                     "without (TokenTable.open(path, vocabulary) adds a vocabulary)")

    def __deepcopy__(self, memo) -> "TokenTable":
        return self

    def __getstate__(self) -> dict:
        """A memory-mapped table is pickled as its path."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_index", "_indexed")}
        return state if self._path is None else {**state, "_base": None, "_blocks": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state, _lock=threading.RLock(), _index={}, _indexed=(0, 0))
        if self._base is None:
            file = read_table(self._path)
            self._base, self._blocks = file.vectors, file.blocks


def _keys(ids: np.ndarray) -> Iterator[bytes]:
    """Ids of tokens [N, C] without their padding, as keys of a dict.

    Words that are truncated to the same ids have the same key and the same vector.
    """
    short = ids.astype(np.int16)
    padding = (short[:, ::-1] != characters.to_model_ids(characters.PADDING)).argmax(1)
    return (row[: len(row) - count].tobytes() for row, count in zip(short, padding))
