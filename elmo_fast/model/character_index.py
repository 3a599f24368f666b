"""Finds words by the character ids that a char encoder reads."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from elmo_fast.model.layout import row_hashes
from elmo_fast.text import characters

_HASHED_AT_ONCE = 1 << 15


class CharacterIndex:
    """Rows of `words`, a list that may grow, by the words' ids of `size` characters.

    A word is found by a 64-bit hash of its ids and then compared. Where several words have the same ids, which two
    words of more bytes than a token has room for may, any of them is found: their vectors are one.
    """

    def __init__(self, words: Sequence[str], size: int):
        self._words, self.size = words, size
        self._count = len(words)
        hashes = [self._hashes(range(first, min(first + _HASHED_AT_ONCE, self._count)))
                  for first in range(0, self._count, _HASHED_AT_ONCE)]
        self._sorted, self._order = torch.cat(hashes).sort()
        self._later: dict[int, int] = {}

    def rows(self, ids: torch.Tensor) -> np.ndarray:
        """ids int [N, C] on the CPU -> int64 [N]; -1 for a token that is none of the words."""
        self._read_on()
        wanted = row_hashes(ids)
        place = torch.searchsorted(self._sorted, wanted).clamp(max=len(self._sorted) - 1)
        found = torch.where(self._sorted[place] == wanted, self._order[place], -1).numpy()
        if self._later:
            for k in np.flatnonzero(found < 0):
                found[k] = self._later.get(int(wanted[k]), -1)
        candidates = np.flatnonzero(found >= 0)
        differ = (self._ids(found[candidates]) != ids[torch.from_numpy(candidates)]).any(1).numpy()
        found[candidates[differ]] = -1
        return found

    def _read_on(self) -> None:
        """Take in the words that joined the list."""
        if self._count < (count := len(self._words)):
            fresh = range(self._count, count)
            self._later.update(zip(self._hashes(fresh).tolist(), fresh))
            self._count = count

    def _hashes(self, rows: Iterable[int]) -> torch.Tensor:
        return row_hashes(self._ids(rows))

    def _ids(self, rows: Iterable[int]) -> torch.Tensor:
        raw = characters.encode_tokens([self._words[row] for row in rows], self.size)
        return torch.from_numpy(characters.to_model_ids(raw))


def words_of_ids(ids: torch.Tensor) -> list[str | None]:
    """The words that character ids int [N, C] spell; None where no word has just these ids.

    That is so for a word that was cut inside a character, and for ids that no text gives.
    """
    raw = ids.numpy() - 1
    ends = (raw == characters.END_WORD).argmax(1)
    words = [_word(row[1:end]) for row, end in zip(raw, ends)]
    again = characters.to_model_ids(characters.encode_tokens([word or "" for word in words], ids.shape[1]))
    same = (again == ids.numpy()).all(1)
    return [word if fits else None for word, fits in zip(words, same)]


def _word(inner: np.ndarray) -> str | None:
    for mark, raw in characters.SENTENCE_MARKS.items():
        if inner.tolist() == [raw]:
            return mark
    if (inner > 255).any() or (inner < 0).any():
        return None
    return inner.astype(np.uint8).tobytes().decode("utf-8", "replace")
