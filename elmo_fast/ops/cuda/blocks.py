"""How the steps of a schedule are cut for the GPU: slots in buckets, steps in blocks and chunks.

A graph is captured for a bucket of slots and a chunk of steps. Any schedule is made of a few of each. A launch of the
persistent kernel runs one block.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from elmo_fast.ops.device import to_device

CHUNKS = (16, 8, 4, 2, 1)
_LEAST_BUCKET, _LEAST_STEPS = 8, 8  # such a bucket is not left for a smaller one, nor any for so few steps


@dataclass(frozen=True)
class Block:
    """Some steps of the slots from `slot` on, with one bucket and one set of input projections.

    `places` int32 [steps, bucket]: the packed row of each slot at each step, or -1 where it has no token; `batch_sizes`
    int32 [steps]: how many have one; `rows` int32: the packed rows in their order.
    """

    slot: int
    places: np.ndarray
    batch_sizes: np.ndarray
    rows: np.ndarray

    steps = property(lambda self: self.places.shape[0])
    bucket = property(lambda self: self.places.shape[1])
    slots = property(lambda self: int(self.batch_sizes[0]))

    @functools.cached_property
    def _ends(self) -> list[int]:
        return np.cumsum(self.batch_sizes, dtype=np.int64).tolist()

    def rows_of(self, first: int, count: int) -> slice:
        """Which of `rows` belong to `count` steps from step `first` of the block on."""
        return slice(self._ends[first - 1] if first else 0, self._ends[first + count - 1])


def bucket_of(slots: int) -> int:
    """The smallest bucket that holds so many slots: powers of two to 64, multiples of 32 to 256, then of 128."""
    if slots <= 64:
        return 1 << max(slots - 1, 0).bit_length()
    step = 32 if slots <= 256 else 128
    return -(-slots // step) * step


def chunks_of(steps: int) -> Iterator[tuple[int, int]]:
    """(first step, steps) of chunks that make up so many steps, the largest first."""
    first = 0
    for size in CHUNKS:
        while steps - first >= size:
            yield first, size
            first += size


def blocks(batch_sizes: np.ndarray, most_rows: int, most_slots: int) -> Iterator[Block]:
    """Blocks of a schedule with `batch_sizes` int [steps], each of at most `most_rows` rows and `most_slots` slots.

    A block ends when its rows are full, and when so few slots are left that a smaller bucket is worth it. A step of
    more than `most_rows` slots is a block of its own.
    """
    batch_sizes = np.asarray(batch_sizes, dtype=np.int64)
    first_row = np.cumsum(batch_sizes) - batch_sizes  # [steps]
    for slot in range(0, int(batch_sizes.max(initial=0)), most_slots):
        running = np.clip(batch_sizes - slot, 0, most_slots)
        steps, first = int(np.count_nonzero(running)), 0
        while first < steps:
            bucket = bucket_of(int(running[first]))
            here = slice(first, first + _steps_that_fit(running[first:steps], bucket, most_rows))
            at = np.arange(bucket)
            has_token = at < running[here, None]
            places = np.where(has_token, first_row[here, None] + slot + at, -1).astype(np.int32)
            yield Block(slot, places, running[here].astype(np.int32), places[has_token])
            first = here.stop


def _steps_that_fit(running: np.ndarray, bucket: int, most_rows: int) -> int:
    few = running <= (bucket // (2 if bucket > 64 else 4) if bucket > _LEAST_BUCKET else 0)
    few[-_LEAST_STEPS + 1 :] = False
    over = np.cumsum(running) > most_rows
    ends = np.flatnonzero(few | over)
    return max(1, int(ends[0])) if ends.size else running.size


@dataclass(frozen=True)
class Sent:
    """A block and what the device is told of it, all int32.

    `meta` [steps + 1, 3, bucket]: the row of z for each direction, -1 without a token, and whether a sequence starts;
    `places` [steps, bucket] and `batch_sizes` [steps] as in `Block`; `rows` the block's packed rows, `taken` where each
    of them lies among its chunk's outputs.
    """

    block: Block
    meta: torch.Tensor
    places: torch.Tensor
    batch_sizes: torch.Tensor
    rows: torch.Tensor
    taken: torch.Tensor


def host_arrays(block: Block, z_rows: Sequence[np.ndarray], starts: np.ndarray | None) -> list[np.ndarray]:
    """What `Sent` has of a block, on the host. `z_rows` of each direction: the row of z of each packed row."""
    has_token = block.places >= 0
    meta = np.full((block.steps + 1, 3, block.bucket), -1, dtype=np.int32)
    meta[:, 2] = 0
    for direction in (0, 1):
        meta[:-1, direction][has_token] = z_rows[direction]
    if starts is not None:
        meta[:-1, 2][has_token] = starts[block.rows]
    taken = np.flatnonzero(has_token).astype(np.int32)
    for first, count in chunks_of(block.steps):
        taken[block.rows_of(first, count)] -= first * block.bucket
    return [meta, block.places, block.batch_sizes, block.rows, taken]


def send(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """int32 arrays on `device`, in one copy."""
    flat = to_device(np.concatenate([each.ravel() for each in arrays]), device)
    parts = flat.split([each.size for each in arrays])
    return [part.view(each.shape) if each.ndim > 1 else part for part, each in zip(parts, arrays)]
