"""`TokenTable`: the vectors of a fixed vocabulary, so that no token is encoded twice."""

import os
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from elmo_fast.choices import UNKNOWN
from elmo_fast.model.character_index import CharacterIndex
from elmo_fast.model.options import ConfigurationError
from elmo_fast.model.table_file import read_table, write_table
from elmo_fast.ops.precision import check_precision, lowest
from elmo_fast.text import characters
from elmo_fast.text.vocabulary import UNKNOWN_TOKEN, Vocabulary

GROWTH = 1 << 16


class TokenTable:
    """Vectors of words: row k of `vectors` [V, P] (float32 or float16) belongs to `words[k]`.

    Token ids are rows + 1, and 0 is padding, as in bilm-tf: the first word keeps its vector. `words` is None where
    only ids are known. `fingerprint` is that of the model that made the vectors (`BiLm.fingerprint()`), None where
    nobody noted it, as in bilm-tf's own files. `precision` is what they were computed in, the lowest of any: a model that
    computes better refuses them.

    `unknown` says what a word outside the table gets: `encode`, its own vector from the char encoder; `error`, a
    `ValueError` that names it; `unk`, the vector of `<UNK>`, as in bilm-tf. With `grow` the words that were encoded
    join the table: at most 65,536 of them, or as many as `grow` says; they are not written to the table's file.

    A table may serve several models and copies of one; copying a model does not copy its table.
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
        self._rows = {word: row for row, word in enumerate(self._words or [])}
        self._growth = _growth(grow)
        self._room, self._grown = self._base.new_empty(0, self.dim), 0
        self._lock = threading.RLock()
        self._index: CharacterIndex | None = None
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
        table = cls(content.vectors, words, content.fingerprint, unknown=unknown, grow=grow, precision=content.precision)
        table._path = os.path.abspath(path) if device is None else None
        return table

    def save(self, path: str | os.PathLike) -> None:
        """Write the table, grown words included; the file takes its name only when it is whole."""
        with self._lock:
            whole = torch.cat([self._base, self._room[: self._grown]]) if self._grown else self._base
            write_table(path, whole, self._words, self.fingerprint, self._precision)

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
        if self._words is None:
            raise ConfigurationError("token table: expected one with a vocabulary to look up words, got one without "
                                     "(TokenTable.open(path, vocabulary) gives it one)")
        return np.fromiter((self._rows.get(word, -1) for word in words), dtype=np.int64, count=len(words))

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """Token ids of words, int64 [N]: rows + 1. A word outside gets `<UNK>`'s with `unknown="unk"`, else an error."""
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
        """Vectors of rows, int64 [N] -> float32 [N, P], where the table is."""
        rows = torch.as_tensor(rows, device=self.device)
        grown = rows >= len(self._base)
        if not self._grown or not grown.any():
            return self._base.index_select(0, rows).float()
        found = self._base.index_select(0, rows.masked_fill(grown, 0)).float()
        found[grown] = self._room[rows[grown] - len(self._base)].float()
        return found

    def add(self, words: Sequence[str], vectors: torch.Tensor, precision: str = "highest") -> None:
        """Let words outside join the table with vectors [N, P] computed in `precision`, as far as `grow` has room."""
        with self._lock:
            fresh = {word: k for k, word in enumerate(words) if word not in self._rows}
            taken = list(fresh.items())[: self._growth - self._grown]
            if not taken or self._words is None:
                return
            count = self._grown + len(taken)
            if count > len(self._room):
                room = self._base.new_empty(min(2 * count, self._growth), self.dim)
                room[: self._grown] = self._room[: self._grown]
                self._room = room
            places = torch.tensor([k for _, k in taken], device=vectors.device)
            self._room[self._grown : count] = vectors[places].detach().to(self._base)
            self._precision = lowest(self._precision, precision)
            self._words.extend(word for word, _ in taken)
            first, self._grown = len(self), count
            self._rows.update((word, first + k) for k, (word, _) in enumerate(taken))

    @property
    def grows(self) -> bool:
        """Whether there is room for words that are encoded."""
        return self._words is not None and self._grown < self._growth

    def rows_of_characters(self, ids: torch.Tensor) -> np.ndarray:
        """Rows of tokens given as the char encoder's ids, int [N, C] on the CPU -> int64 [N]; -1 outside the table."""
        if self._words is None:
            self.rows([])
        with self._lock:
            if self._index is None or self._index.size != ids.shape[1]:
                self._index = CharacterIndex(self._words, ids.shape[1])
            return self._index.rows(ids)

    def __deepcopy__(self, memo) -> "TokenTable":
        return self

    def __getstate__(self) -> dict:
        """A memory-mapped table travels as its path."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_index")}
        return state if self._path is None else {**state, "_base": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state, _lock=threading.RLock(), _index=None)
        if self._base is None:
            self._base = read_table(self._path).vectors


def words_of(vocabulary: str | os.PathLike | Iterable[str]) -> list[str]:
    """Words of a vocabulary file, which must have `<S>` and `</S>`, or of an iterable.

    Where an iterable lacks the two they are put at its end: the numbers of its words stay.
    """
    if isinstance(vocabulary, (str, os.PathLike)):
        read = Vocabulary(vocabulary)
        read.require(*_MARKS)
        return list(read.words)
    if not isinstance(vocabulary, Iterable):
        raise ValueError(f"vocabulary: expected a file or words, got {type(vocabulary).__name__}")
    words = list(vocabulary)
    wrong = next((word for word in words if not isinstance(word, str)), None)
    if wrong is not None:
        raise ValueError(f"vocabulary: expected strings, got {type(wrong).__name__} ({wrong!r:.60})")
    known = set(words)
    return words + [mark for mark in _MARKS if mark not in known]


_MARKS = (characters.BEGIN_SENTENCE_TOKEN, characters.END_SENTENCE_TOKEN)


def _checked(vectors: np.ndarray | torch.Tensor) -> torch.Tensor:
    tensor = torch.as_tensor(vectors)
    if tensor.dim() != 2 or 0 in tensor.shape or tensor.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"vectors: expected float32 or float16 of shape [words, values], got {tensor.dtype} of shape "
                         f"{tuple(tensor.shape)}")
    return tensor.detach()


def _growth(grow: bool | int) -> int:
    if not isinstance(grow, (bool, int)) or grow < 0:
        raise ValueError(f"grow: expected True, False or how many words may join, got {grow!r}")
    return GROWTH * grow if isinstance(grow, bool) else grow
