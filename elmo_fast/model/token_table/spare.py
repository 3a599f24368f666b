"""Token vectors that are kept between calls."""

from collections import deque
from collections.abc import Callable, Hashable

import numpy as np
import torch

from elmo_fast.model.token_table.table import TokenTable

SPARE_TOKENS = 1 << 13  # whose vectors are kept between calls: 16 MB in the original size


class SpareVectors:
    """A cache of token vectors between runs, at most `most` tokens; safe for threads. Copies and pickles are empty."""

    def __init__(self, most: int = SPARE_TOKENS):
        self._most = most
        self._spare: deque[TokenTable] = deque(maxlen=1)

    def take(self) -> TokenTable:
        """The cache of an earlier run, for one run, or an empty one."""
        try:
            return self._spare.pop()
        except IndexError:
            return TokenTable()

    def put(self, tokens: TokenTable) -> None:
        """Keep the cache of a run that has ended, unless it has too many tokens."""
        if len(tokens) <= self._most:
            self._spare.append(tokens)

    def __reduce__(self) -> tuple:
        return SpareVectors, (self._most,)


def vectors_of_ids(spare: SpareVectors, key: Callable[[], Hashable], ids: torch.Tensor,
                   encode: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors [R, P] with those of character ids int [N, C], N at least 1, and the row of each, int64 [N].

    `encode` computes the vectors of ids that the vectors of `key` in `spare` do not have. A token is named by its ids.
    """
    cache = spare.take()
    cache.check(key(), ())
    names, size = ids.to(torch.int16).numpy().tobytes().decode("latin-1"), 2 * ids.shape[1]
    rows = cache.number([names[k : k + size] for k in range(0, len(names), size)])
    if new := cache.unencoded(len(rows)):
        new_ids = np.frombuffer("".join(new).encode("latin-1"), np.int16).reshape(len(new), -1)
        cache.append(encode(torch.from_numpy(new_ids.astype(np.int64))))
    vectors = cache.encoded  # before another thread may take the cache
    spare.put(cache)
    return vectors, torch.from_numpy(rows).long()
