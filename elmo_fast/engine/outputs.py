"""The plan of a chunk of steps: its schedule, and where the outputs are written, every sentence's own array."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elmo_fast.engine.schedule import Schedule, make_schedule
from elmo_fast.engine.scheduler import Piece

_FEW_STEPS = 256  # of all pieces together: plans of so few are cached, as calls of single sentences are alike


class ChunkPlan(NamedTuple):
    """The schedule of the pieces of a chunk, and the places of the LSTM layers' outputs.

    The output of a layer and direction at a packed row goes to memory number `owners` int64 [2, S], `offsets` int64
    [L, 2, S] bytes from its start. The memories are the arrays of the pieces' sentences, float32 [1 + L, T, 2 P], in
    the order of the text, and one for `<S>` and `</S>`, which no result contains, [L, pieces, 2, 2 P].
    """

    schedule: Schedule
    owners: np.ndarray
    offsets: np.ndarray

    def addresses(self, pieces: Sequence[Piece]) -> tuple[np.ndarray, np.ndarray]:
        """The address of every output, uint64 [L, 2, S], and the memory for `<S>` and `</S>`, to be kept meanwhile."""
        layers, _, width = pieces[0].sentence.vectors.shape
        boundaries = np.empty((layers - 1, len(pieces), 2, width), np.float32)
        starts = np.array([memory.ctypes.data for memory in (*(p.sentence.vectors for p in pieces), boundaries)])
        return (starts[self.owners] + self.offsets).view(np.uint64), boundaries


def plan_of(pieces: Sequence[Piece], slots: int, layers: int, width: int) -> ChunkPlan:
    """The plan of pieces in `slots` slots, for `layers` LSTM layers with `width` values, 2 P."""
    spans = tuple([(piece.slot, piece.begin, piece.end, len(piece.sentence.rows)) for piece in pieces])
    few = sum([end - begin for _, begin, end, _ in spans]) <= _FEW_STEPS
    return (_cached_plan if few else _plan)(spans, slots, layers, width)


def _plan(spans: Sequence[tuple[int, int, int, int]], slots: int, layers: int, width: int) -> ChunkPlan:
    slot, begin, end, length = np.array(spans).T
    counts, row = end - begin, 4 * width  # steps of a piece, bytes of a row of 2 P
    sizes, offsets = (length - 2) * row, np.cumsum(counts) - counts  # bytes of a layer of the piece's sentence
    schedule = make_schedule(counts, slot, slots, begin > 0)
    # Row k of a piece in the order of the text is token begin + k forward and token length - end + k backward.
    first = sizes + (np.array([begin, length - end]) - 1 - offsets) * row  # [2, pieces]
    first, stride = np.repeat(first, counts, axis=1), np.repeat(sizes, counts)  # [2, S], [S]
    first += np.arange(len(stride)) * row
    first[1] += row // 2
    strides, owner = np.stack([stride, stride]), np.repeat(np.arange(len(spans)), counts)
    owners = np.stack([owner, owner])
    outside = np.arange(2 * len(spans)).reshape(-1, 2) * row  # [pieces, 2] of <S> and </S>
    for is_inside, rows, (forward, backward) in ((begin == 0, offsets, (0, 1)),
                                                 (end == length, offsets + counts - 1, (1, 0))):
        numbers = np.flatnonzero(is_inside)
        # Forward begins with <S> and ends with </S>; backward steps run from </S> to <S>.
        mirrored = (2 * offsets + counts - 1 - rows)[numbers]
        first[0, rows[numbers]] = outside[numbers, forward]
        first[1, mirrored] = outside[numbers, backward] + row // 2
        strides[0, rows[numbers]] = strides[1, mirrored] = 2 * len(spans) * row
        owners[0, rows[numbers]] = owners[1, mirrored] = len(spans)
    first, strides, owners = (np.take_along_axis(values, schedule.tokens, axis=1)
                              for values in (first, strides, owners))
    return ChunkPlan(schedule, owners, first + np.arange(layers)[:, None, None] * strides)


_cached_plan = functools.lru_cache(maxsize=256)(_plan)
