"""Where the outputs of a chunk of steps are written: every sentence's own array, in the order of its tokens."""

from collections.abc import Sequence

import numpy as np

from elmo_fast.embed.scheduler import Piece
from elmo_fast.ops.schedule import Schedule


def output_addresses(pieces: Sequence[Piece], schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of the LSTM layers' outputs at each packed row, uint64 [L, 2, S], and memory that they also refer to.

    The pieces' sentences have `vectors`, float32 [1 + L, T, 2 P]; the pieces are the sentences of `schedule`. Outputs
    of `<S>` and `</S>`, which no result contains, are written to the memory returned, [L, pieces, 2, 2 P].
    """
    layers, _, width = pieces[0].sentence.vectors.shape
    layers, row = layers - 1, 4 * width  # bytes of a row of 2 P
    boundaries = np.empty((layers, len(pieces), 2, width), np.float32)
    starts = np.array([piece.sentence.vectors.ctypes.data for piece in pieces])
    begin, end, length = np.array([(piece.begin, piece.end, len(piece.sentence.rows)) for piece in pieces]).T
    counts, sizes = end - begin, (length - 2) * row  # steps of a piece, bytes of a layer of its sentence
    offsets = np.cumsum(counts) - counts
    # Row k of a piece in the order of the text is token begin + k forward and token length - end + k backward.
    first = starts + sizes + (np.array([begin, length - end]) - 1 - offsets) * row  # [2, pieces]
    first, stride = np.repeat(first, counts, axis=1), np.repeat(sizes, counts)  # [2, S], [S]
    first += np.arange(len(stride)) * row
    first[1] += row // 2
    strides = np.stack([stride, stride])
    outside = boundaries.ctypes.data + np.arange(2 * len(pieces)).reshape(-1, 2) * row  # [pieces, 2] of <S> and </S>
    for is_inside, rows, (forward, backward) in ((begin == 0, offsets, (0, 1)),
                                                 (end == length, offsets + counts - 1, (1, 0))):
        numbers = np.flatnonzero(is_inside)
        # Forward begins with <S> and ends with </S>; backward steps run from </S> to <S>.
        first[0, rows[numbers]] = outside[numbers, forward]
        mirrored = (2 * offsets + counts - 1 - rows)[numbers]
        first[1, mirrored] = outside[numbers, backward] + row // 2
        strides[0, rows[numbers]] = strides[1, mirrored] = boundaries[0].nbytes
    order = schedule.tokens
    first, strides = (np.take_along_axis(values, order, axis=1) for values in (first, strides))
    return (first + np.arange(layers)[:, None, None] * strides).astype(np.uint64), boundaries
