"""Token vectors that are kept within a run, and between runs, so that no token is encoded twice."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from elmo_fast.arguments import shown
from elmo_fast.engine.scheduler import Sentence
from elmo_fast.text.batching import not_a_string

SPARE_TOKENS = 1 << 13  # whose vectors are kept between calls: 16 MB in the original size


def empty_rows(like: np.ndarray, count: int) -> np.ndarray:
    """Uninitialized memory of `count` rows of the width and type of `like`."""
    return np.empty((count, like.shape[1]), like.dtype)


class TokenVectors:
    """A cache: row k of the vectors belongs to token k; `number` adds tokens, and `append` their vectors."""

    def __init__(self) -> None:
        self._memory = np.empty((0, 0), np.float32)
        self._encoded = 0  # rows with a vector; the memory has room for more
        self._tokens: list[str] = []
        self._rows = _Rows(self._tokens)
        self._key: Hashable = None
        self._most_in_flight = 0  # tokens that were in flight when a full cache was last reduced

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def encoded(self) -> np.ndarray:
        """The vectors of the rows that have one, float32 [N, P]."""
        return self._memory[: self._encoded]

    def number(self, tokens: Sequence[str], boundaries: Sequence[str] = ()) -> np.ndarray:
        """Rows of a sentence's tokens, int32 [N], `boundaries` (two tokens, or none) around them; adds new tokens.

        `ValueError` for tokens that are no strings.
        """
        known = len(self._tokens)
        try:
            bounded = (*boundaries[:1], *tokens, *boundaries[1:])
            return np.fromiter(map(self._rows.__getitem__, bounded), np.int32, len(bounded))
        except (TypeError, ValueError) as error:
            self._replace_tokens(self._tokens[:known])
            if isinstance(error, TypeError):
                raise not_a_string(error) from error
            raise

    def unencoded(self, most: int) -> list[str]:
        """At most `most` tokens without a vector, in the order in which `append` takes their vectors."""
        return self._tokens[self._encoded : self._encoded + most]

    def append(self, vectors: np.ndarray, empty: Callable = empty_rows) -> None:
        """Add the vectors [N, P] of the next tokens of `unencoded`, in memory of `empty`, also on a device."""
        known, count = self._encoded, self._encoded + len(vectors)
        if not known:
            self._memory, self._encoded = vectors, count
            return
        if count > len(self._memory):
            larger = empty(vectors, 2 * count)
            larger[:known] = self.encoded
            self._memory = larger
        self._memory[known:count] = vectors
        self._encoded = count

    def reduce(self, capacity: int, in_flight: Sequence[Sentence]) -> None:
        """Reduce a cache of more than `capacity` tokens to those of sentences `in_flight`; renumber their `rows`."""
        if len(self) <= max(capacity, 2 * self._most_in_flight):
            return
        self._memory = self._memory[self._keep(in_flight)]
        self._encoded = self._most_in_flight = len(self._memory)

    def check(self, key: Hashable, in_flight: Sequence[Sentence]) -> None:
        """Drop the vectors unless they were computed under this `key`; renumber the sentences' `rows`."""
        if self._encoded and key != self._key:
            self._keep(in_flight)
            self._memory, self._encoded, self._most_in_flight = np.empty((0, 0), np.float32), 0, 0
        self._key = key

    def _keep(self, in_flight: Sequence[Sentence]) -> np.ndarray:
        """Keep the tokens of the sentences `in_flight`, and renumber the sentences' `rows`; return the old rows."""
        rows = np.concatenate([np.empty(0, np.int32), *(sentence.rows for sentence in in_flight)])
        kept, renumbered = np.unique(rows, return_inverse=True)
        self._replace_tokens([self._tokens[row] for row in kept])
        ends = np.cumsum([len(sentence.rows) for sentence in in_flight])[:-1]
        for sentence, rows in zip(in_flight, np.split(renumbered.astype(np.int32), ends)):
            sentence.rows = rows
        return kept

    def _replace_tokens(self, tokens: list[str]) -> None:
        self._tokens, self._rows = tokens, _Rows(tokens)


class SpareVectors:
    """A cache of token vectors between runs, at most `most` tokens; safe for threads. Copies and pickles are empty."""

    def __init__(self, most: int = SPARE_TOKENS):
        self._most = most
        self._spare: deque[TokenVectors] = deque(maxlen=1)

    def take(self) -> TokenVectors:
        """The cache of an earlier run, for one run, or an empty one."""
        try:
            return self._spare.pop()
        except IndexError:
            return TokenVectors()

    def put(self, tokens: TokenVectors) -> None:
        """Keep the cache of a run that has ended, unless it has too many tokens."""
        if len(tokens) <= self._most:
            self._spare.append(tokens)

    def __reduce__(self) -> tuple:
        return SpareVectors, (self._most,)


class _Rows(dict[str, int]):
    """Rows by token, of equal tokens the last; `[]` adds an unknown token to `tokens`, and gives it the next row."""

    def __init__(self, tokens: list[str]):
        super().__init__(zip(tokens, range(len(tokens))))
        self._tokens = tokens

    def __missing__(self, token: str) -> int:
        if not isinstance(token, str):
            raise ValueError(f"token: expected a string, got {type(token).__name__} ({shown(token)})")
        row = self[token] = len(self._tokens)
        self._tokens.append(token)
        return row
