"""A bounded cache of token vectors: each unique token is encoded once, until it is dropped from a full cache."""

import itertools
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import numpy as np
import torch

from elmo_fast.arguments import shown
from elmo_fast.model.token_table.lookup import TokenEmbeddings
from elmo_fast.ops.device import to_device
from elmo_fast.text.batching import not_a_string

SPARE_TOKENS = 1 << 13  # whose vectors are kept between calls: 16 MB in the original size


class Sentence(Protocol):
    """A sentence whose tokens are `rows` of the cache."""

    rows: np.ndarray


class TokenVectors:
    """Vectors by row; every token has a row, and its vector after `append`.

    `boundaries` are the tokens around every sentence, if any, `capacity` the tokens of a full cache. `table` holds the
    vectors; it is None before the first `append`.
    """

    def __init__(self, boundaries: tuple[str, ...], capacity: int):
        self._before, self._after, self._capacity = boundaries[:1], boundaries[1:], capacity
        self.table: TokenEmbeddings | None = None
        self._memory = torch.empty(0, 0)  # of the table's vectors, with capacity for more
        self._rows = _Rows()
        self._kept = 0  # tokens that were in flight when the cache was last full
        self._key: Hashable = None

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, tokens: Sequence[str]) -> np.ndarray:
        """Rows of a sentence's tokens, with boundaries: int32 [tokens + 2]. Tokens that are no strings are refused."""
        known = len(self._rows)
        try:
            all_tokens = (*self._before, *tokens, *self._after)
            return np.fromiter(map(self._rows.__getitem__, all_tokens), np.int32, len(all_tokens))
        except (TypeError, ValueError) as error:
            self._rows = _Rows(itertools.islice(self._rows.items(), known))
            if isinstance(error, TypeError):
                raise not_a_string(error) from error
            raise

    def unencoded(self, most: int) -> list[str]:
        """At most `most` tokens without a vector, in the order in which `append` takes their vectors."""
        count = len(self._rows) - self._encoded
        return list(itertools.islice(reversed(self._rows), count))[: -most - 1 : -1]

    @torch.inference_mode(False)  # a later call may write where this one does
    def append(self, new: TokenEmbeddings) -> None:
        """Add the vectors of the next tokens of `unencoded`."""
        if self.table:
            rows = None if new.rows is None or self.table.rows is None else [self.table.rows, new.rows]
            known, count = self._encoded, self._encoded + len(new.vectors)
            if count > len(self._memory):
                self._memory = new.vectors.new_empty(2 * count, new.vectors.shape[1])
                self._memory[:known] = self.table.vectors
            self._memory[known:count] = new.vectors
            new = TokenEmbeddings(self._memory[:count], rows and np.concatenate(rows))
        self.table = new

    @torch.inference_mode(False)
    def reduce(self, in_flight: Sequence[Sentence]) -> None:
        """Reduce a full cache to the tokens of the sentences `in_flight`, and renumber the sentences' `rows`."""
        if len(self._rows) <= max(self._capacity, 2 * self._kept):
            return
        kept, (vectors, table_rows) = self._renumber(in_flight), self.table
        self.table = TokenEmbeddings(vectors[to_device(kept, vectors.device).long()],
                                     None if table_rows is None else table_rows[kept])
        self._memory, self._kept = self.table.vectors, len(kept)

    def check(self, key: Hashable, in_flight: Sequence[Sentence]) -> None:
        """Drop all vectors unless they were computed under this `key`, and renumber the rows of the sentences."""
        if self.table and key != self._key:
            self._renumber(in_flight)
            self.table, self._memory, self._kept = None, torch.empty(0, 0), 0
        self._key = key

    def _renumber(self, in_flight: Sequence[Sentence]) -> np.ndarray:
        """Keep the tokens of the sentences `in_flight`, and renumber the sentences' `rows`; return the rows kept."""
        rows = np.concatenate([np.empty(0, np.int32), *(sentence.rows for sentence in in_flight)])
        kept, renumbered = np.unique(rows, return_inverse=True)
        tokens = list(self._rows)
        self._rows = _Rows((tokens[row], number) for number, row in enumerate(kept))
        ends = np.cumsum([len(sentence.rows) for sentence in in_flight])[:-1]
        for sentence, rows in zip(in_flight, np.split(renumbered.astype(np.int32), ends)):
            sentence.rows = rows
        return kept

    @property
    def _encoded(self) -> int:
        return len(self.table.vectors) if self.table else 0


class _Rows(dict[str, int]):
    """Rows by token; a new token gets the next row."""

    def __missing__(self, token: str) -> int:
        if not isinstance(token, str):
            raise ValueError(f"token: expected a string, got {type(token).__name__} ({shown(token)})")
        row = self[token] = len(self)
        return row


class SpareVectors:
    """Token vectors between runs, at most `most` tokens; safe for threads. Copies and pickles are empty."""

    def __init__(self, most: int = SPARE_TOKENS):
        self._most = most
        self._spare: deque[TokenVectors] = deque(maxlen=1)

    def take(self) -> TokenVectors | None:
        """The vectors of an earlier run, for one run, or None."""
        try:
            return self._spare.pop()
        except IndexError:
            return None

    def put(self, tokens: TokenVectors) -> None:
        """Keep the vectors of a run that has ended, unless they are too many."""
        if len(tokens) <= self._most:
            self._spare.append(tokens)

    def __reduce__(self) -> tuple:
        return SpareVectors, (self._most,)


def vectors_of_ids(spare: SpareVectors, key: Callable[[], Hashable], ids: torch.Tensor,
                   encode: Callable[[torch.Tensor], TokenEmbeddings]) -> tuple[TokenEmbeddings, torch.Tensor]:
    """Vectors [R, P] with those of character ids int [N, C], N at least 1, and the row of each, int64 [N].

    `encode` computes the vectors of ids that the vectors of `key` in `spare` do not have. A token is named by its ids.
    """
    vectors = spare.take() or TokenVectors((), sys.maxsize)
    vectors.check(key(), ())
    names, size = ids.to(torch.int16).numpy().tobytes().decode("latin-1"), 2 * ids.shape[1]
    rows = vectors.rows([names[k : k + size] for k in range(0, len(names), size)])
    if new := vectors.unencoded(len(rows)):
        new_ids = np.frombuffer("".join(new).encode("latin-1"), np.int16).reshape(len(new), -1)
        vectors.append(encode(torch.from_numpy(new_ids.astype(np.int64))))
    table = vectors.table  # before another thread may take them
    spare.put(vectors)
    return table, torch.from_numpy(rows).long()
