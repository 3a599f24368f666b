"""How the steps of a schedule are cut for the GPU: lanes in buckets, steps in blocks and chunks. Host arithmetic alone.

A graph is captured for a bucket of lanes and a chunk of steps. Any schedule is made of a few of each.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

CHUNKS = (16, 8, 4, 2, 1)
MOST_LANES = 1024  # lanes that step together; a larger batch runs group after group


@dataclass(frozen=True)
class Block:
    """Steps `first` to `first + steps` of the lanes from position `lane` on, with one bucket and one set of products.

    `places` int32 [steps, bucket]: the step-row of each lane at each step, or -1 where it has no token.
    """

    first: int
    lane: int
    places: np.ndarray

    @property
    def steps(self) -> int:
        return self.places.shape[0]

    @property
    def bucket(self) -> int:
        return self.places.shape[1]

    @property
    def lanes(self) -> int:
        """Lanes that run at the block's first step, and so at any."""
        return int((self.places[0] >= 0).sum())

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The block's step-rows in their order, int32."""
        return self.places[self.places >= 0]

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """How many of `rows` lie before each step, and before the block's end: int64 [steps + 1]."""
        return np.concatenate([[0], np.cumsum((self.places >= 0).sum(1))])

    def rows_of(self, first: int, count: int) -> slice:
        """Which of `rows` belong to so many steps."""
        return slice(int(self.ends[first]), int(self.ends[first + count]))


def bucket_of(lanes: int) -> int:
    """The smallest bucket that holds so many lanes: powers of two to 64, multiples of 32 to 256, then of 128."""
    if lanes <= 64:
        return 1 << max(lanes - 1, 0).bit_length()
    step = 32 if lanes <= 256 else 128
    return -(-lanes // step) * step


def chunks_of(steps: int) -> Iterator[tuple[int, int]]:
    """(first step, steps) of chunks that make up so many steps, the largest first."""
    first = 0
    for size in CHUNKS:
        while steps - first >= size:
            yield first, size
            first += size


def blocks(live: np.ndarray, most_rows: int) -> Iterator[Block]:
    """Blocks of a schedule with `live` int [steps] lanes at each step, at most `most_rows` step-rows in each.

    A block ends when its rows are full, and when so few lanes are left that a smaller bucket is worth it. A step of
    more than `most_rows` lanes is a block of its own.
    """
    live = np.asarray(live, dtype=np.int64)
    first_row = np.cumsum(live) - live  # [steps]
    for lane in range(0, int(live.max(initial=0)), MOST_LANES):
        running = np.clip(live - lane, 0, MOST_LANES)
        steps, first = int(np.count_nonzero(running)), 0
        while first < steps:
            bucket = bucket_of(int(running[first]))
            here = slice(first, first + _steps_that_fit(running[first:steps], bucket, most_rows))
            at = np.arange(bucket)
            places = np.where(at < running[here, None], first_row[here, None] + lane + at, -1)
            yield Block(first, lane, places.astype(np.int32))
            first = here.stop


def _steps_that_fit(running: np.ndarray, bucket: int, most_rows: int) -> int:
    few = running <= bucket // (2 if bucket > 64 else 4)
    over = np.cumsum(running) > most_rows
    ends = np.flatnonzero(few | over)
    return max(1, int(ends[0])) if ends.size else running.size
