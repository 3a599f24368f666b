"""`TokenTable`: the vectors of a fixed vocabulary, so that no token is encoded twice."""

import os
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from elmo_fast.choices import UNKNOWN
from elmo_fast.model.batch_layout import row_hashes
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.token_table.file import read_table, words_of, write_table
from elmo_fast.ops.precision import check_precision, lowest
from elmo_fast.text import characters
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN

GROWTH = 1 << 16
_HASHED_AT_ONCE = 1 << 15


class TokenTable:
    """Vectors of words: row k of `vectors` [V, P] (float32 or float16) belongs to `words[k]`.

    Token ids are rows + 1, and 0 is padding, as in bilm-tf: the first word keeps its vector. `words` is None where
    only ids are known. `fingerprint` is that of the model that computed the vectors (`BiLm.fingerprint()`), None where
    it is not recorded, as in bilm-tf's own files. `precision` is the lowest that any vector was computed in: a model of
    higher precision refuses the table.

    `unknown` says what a word outside the table gets: `encode`, its own vector from the char encoder; `error`, a
    `ValueError` that names it; `unk`, the vector of `<UNK>`, as in bilm-tf. With `grow` the words that were encoded
    join the table: at most 65,536 of them, or as many as `grow` says; they are not written to the table's file.

    A table may serve several models and copies of a model; copying a model does not copy its table.
    """

    def __init__(self, vectors: np.ndarray | torch.Tensor, words: Sequence[str] | None = None,
                 fingerprint: str | None = None, *, unknown: str = "encode", grow: bool | int = False,
                 precision: str = "highest"):
        self._base = _checked(vectors)
        self.fingerprint = fingerprint
        self._precision = check_precision(precision)
        self._words = None if words is None else list(words)
        if self._words is not None and len(self._words) != len(self._base):
            raise ValueError(f"words: expected one for each of {len(self._base)} vectors, got {len(self._words)}")
        if not isinstance(grow, (bool, int)) or grow < 0:
            raise ValueError(f"grow: expected True, False or how many words may join, got {grow!r}")
        self._rows = {word: row for row, word in enumerate(self._words or [])}
        self._growth = GROWTH * grow if isinstance(grow, bool) else grow
        self._joined, self._grown = self._base.new_empty(0, self.dim), 0  # vectors of joined words, how many are used
        self._lock = threading.RLock()
        self._index: _CharacterIndex | None = None
        self._path: str | None = None
        self.unknown = unknown

    @classmethod
    def open(cls, path: str | os.PathLike, vocabulary: str | os.PathLike | Iterable[str] | None = None, *,
             device: torch.device | str | None = None, unknown: str = "encode",
             grow: bool | int = False) -> "TokenTable":
        """Read a table from a file of ours or of bilm-tf, memory-mapped, or onto `device` (`"cpu"`, `"cuda"`).

        `vocabulary` is the vocabulary file of a table that bilm-tf wrote, or its words in order; ours hold their
        own, and another one is refused.
        """
        content = read_table(path, None if device is None else torch.device(device))
        words = content.words
        if vocabulary is not None:
            given = words_of(vocabulary)
            if words is not None and given != words:
                raise ConfigurationError(f"vocabulary: expected the one the token table {os.fspath(path)} was made "
                                         f"from ({len(words)} words), got another ({len(given)} words)")
            if len(given) != len(content.vectors):
                raise ConfigurationError(f"vocabulary: expected a word for each of the {len(content.vectors)} vectors "
                                         f"of {os.fspath(path)}, got {len(given)} words")
            words = given
        table = cls(content.vectors, words, content.fingerprint, unknown=unknown, grow=grow,
                    precision=content.precision)
        table._path = os.path.abspath(path) if device is None else None
        return table

    def save(self, path: str | os.PathLike) -> None:
        """Write the table, joined words included; the file is written atomically."""
        with self._lock:
            vectors = torch.cat([self._base, self._joined[: self._grown]]) if self._grown else self._base
            write_table(path, vectors, self._words, self.fingerprint, self._precision)

    def __len__(self) -> int:
        return len(self._base) + self._grown

    def __contains__(self, word: str) -> bool:
        return word in self._rows

    @property
    def words(self) -> Sequence[str] | None:
        """Words in the order of their rows, or None where only ids are known. Not to be changed."""
        return self._words

    @property
    def dim(self) -> int:
        """Values of one vector."""
        return self._base.shape[1]

    @property
    def storage(self) -> str:
        """`float32` or `float16`."""
        return str(self._base.dtype).removeprefix("torch.")

    @property
    def precision(self) -> str:
        """The lowest precision that a vector was computed in: `highest`, `high` or `medium`."""
        return self._precision

    @property
    def device(self) -> torch.device:
        """Where the vectors are; memory-mapped ones are on the CPU."""
        return self._base.device

    @property
    def grows(self) -> bool:
        """Whether there is capacity for words that are encoded."""
        return self._words is not None and self._grown < self._growth

    @property
    def unknown(self) -> str:
        """`encode`, `error` or `unk`: what a word outside the table gets; may be set."""
        return self._unknown

    @unknown.setter
    def unknown(self, unknown: str) -> None:
        if unknown not in UNKNOWN:
            raise ValueError(f"unknown: expected one of {', '.join(UNKNOWN)}, got {unknown!r}")
        if unknown == "unk" and UNKNOWN_TOKEN not in self._rows:
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
        with self._lock:
            if self._index is None or self._index.size != ids.shape[1]:
                self._index = _CharacterIndex(self._words, ids.shape[1])
            return self._index.rows(ids)

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """Token ids of words, int64 [N]: rows + 1.

        A word outside the table has the id of `<UNK>` with `unknown="unk"`, and is a `ValueError` without.
        """
        rows = self.rows(words)
        missing = np.flatnonzero(rows < 0)
        if missing.size and self.unknown != "unk":
            self.refuse([words[k] for k in missing])
        rows[missing] = self._rows.get(UNKNOWN_TOKEN, -1)
        return rows + 1

    def refuse(self, words: Sequence[str]) -> None:
        """Raise `ValueError` that names words outside the table."""
        unique = list(dict.fromkeys(words))
        shown = ", ".join(f"{word!r:.60}" for word in unique[:5]) + (", ..." if len(unique) > 5 else "")
        raise ValueError(f"token table: expected words of the table ({len(self)} words), got {shown}")

    def vectors(self, rows: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Vectors of rows, int64 [N] -> float32 [N, P], on the table's device."""
        rows = torch.as_tensor(rows, device=self.device)
        joined = rows >= len(self._base)
        if not self._grown or not joined.any():
            return self._base.index_select(0, rows).float()
        vectors = self._base.index_select(0, rows.masked_fill(joined, 0)).float()
        vectors[joined] = self._joined[rows[joined] - len(self._base)].float()
        return vectors

    def add(self, words: Sequence[str], vectors: torch.Tensor, precision: str = "highest") -> None:
        """Let words outside join the table, with vectors [N, P] computed in `precision`, up to its capacity."""
        with self._lock:
            new = {word: k for k, word in enumerate(words) if word not in self._rows}
            taken = list(new.items())[: self._growth - self._grown]
            if not taken or self._words is None:
                return
            count = self._grown + len(taken)
            if count > len(self._joined):
                larger = self._base.new_empty(min(2 * count, self._growth), self.dim)
                larger[: self._grown] = self._joined[: self._grown]
                self._joined = larger
            positions = torch.tensor([k for _, k in taken], device=vectors.device)
            self._joined[self._grown : count] = vectors[positions].detach().to(self._base)
            self._precision = lowest(self._precision, precision)
            self._words.extend(word for word, _ in taken)
            first, self._grown = len(self), count
            self._rows.update((word, first + k) for k, (word, _) in enumerate(taken))

    def _require_words(self) -> None:
        if self._words is None:
            raise ConfigurationError("token table: expected one with a vocabulary to look up words, got one without "
                                     "(TokenTable.open(path, vocabulary) gives it one)")

    def __deepcopy__(self, memo) -> "TokenTable":
        return self

    def __getstate__(self) -> dict:
        """A memory-mapped table is pickled as its path."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_index")}
        return state if self._path is None else {**state, "_base": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state, _lock=threading.RLock(), _index=None)
        if self._base is None:
            self._base = read_table(self._path).vectors


class _CharacterIndex:
    """Rows of `words`, a list that may grow, by the words' ids of `size` characters.

    A word is found by a 64-bit hash of its ids, which are then compared. Where several words have the same ids, as two
    words of too many bytes may, any of them is found: they have the same vector.
    """

    def __init__(self, words: Sequence[str], size: int):
        self._words, self.size = words, size
        self._count = len(words)
        hashes = [row_hashes(self._ids(range(first, min(first + _HASHED_AT_ONCE, self._count))))
                  for first in range(0, self._count, _HASHED_AT_ONCE)]
        self._sorted, self._order = torch.cat(hashes).sort()
        self._joined: dict[int, int] = {}  # hash of a word that joined later -> its row

    def rows(self, ids: torch.Tensor) -> np.ndarray:
        """ids int [N, C] on the CPU -> int64 [N]; -1 for a token that is none of the words."""
        if self._count < len(self._words):
            new = range(self._count, len(self._words))
            self._joined.update(zip(row_hashes(self._ids(new)).tolist(), new))
            self._count = len(self._words)
        hashes = row_hashes(ids)
        nearest = torch.searchsorted(self._sorted, hashes).clamp(max=len(self._sorted) - 1)
        rows = torch.where(self._sorted[nearest] == hashes, self._order[nearest], -1).numpy()
        if self._joined:
            for k in np.flatnonzero(rows < 0):
                rows[k] = self._joined.get(int(hashes[k]), -1)
        candidates = np.flatnonzero(rows >= 0)
        differ = (self._ids(rows[candidates]) != ids[torch.from_numpy(candidates)]).any(1).numpy()
        rows[candidates[differ]] = -1
        return rows

    def _ids(self, rows: Iterable[int]) -> torch.Tensor:
        raw = characters.encode_tokens([self._words[row] for row in rows], self.size)
        return torch.from_numpy(characters.to_model_ids(raw))


def _checked(vectors: np.ndarray | torch.Tensor) -> torch.Tensor:
    tensor = torch.as_tensor(vectors)
    if tensor.dim() != 2 or 0 in tensor.shape or tensor.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"vectors: expected float32 or float16 of shape [words, values], got {tensor.dtype} of shape "
                         f"{tuple(tensor.shape)}")
    return tensor.detach()
