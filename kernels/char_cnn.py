"""The char-CNN in a single kernel: embedding, convolutions of every width, maximum and activation.

A program takes BM tokens and BN filters of one width, which it keeps on chip; a position costs one product of the
embedded windows [BM, width * E] and one maximum. Tokens are sorted by length: a program stops one position behind its
longest token, at the first window that holds only padding, since all later windows have the same value. Only windows
within the C characters are computed, so the maximum includes padding exactly where a window of padding exists, and a
token's value has the same bits whatever tokens share its program.
"""

import math
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from elmo_fast.kernels.configs import launch_options
from elmo_fast.kernels.lstm_pointwise import _tanh

# Windows of up to so many values (a power of two) are a single product, with the filters kept on chip. Longer windows,
# and all windows in IEEE fp32, whose products run on the fp32 units, are multiplied in pieces.
WHOLE = (32, 64, 128)
PIECES = len(WHOLE)
UNSORTED = 32  # up to so many tokens run in their given order


def char_cnn(ids: torch.Tensor, lengths: torch.Tensor, packed, activation: str, out: torch.Tensor) -> None:
    """Filter values of tokens: ids int64 [N, C], contiguous, and lengths int32 [N] -> out [N, F].

    `packed` is a `PackedFilters`. Ids outside the table are clamped to its first or last row.
    """
    (count, characters), order = ids.shape, packed.unsorted[: len(ids)]
    if not count:
        return
    if count > UNSORTED:
        lengths, order = lengths.sort(descending=True)
    options = launch_options("char_cnn", packed.operands, count, out.device)
    tiles = triton.cdiv(count, options["BM"]) * sum(triton.cdiv(number, options["BN"]) for number in packed.counts)
    _char_cnn[(tiles,)](ids, order, lengths, packed.table, packed.weights, packed.biases, packed.widths, out, count,
                        characters, out.shape[1], len(packed.table) - 1, len(packed.counts), EP=packed.table.shape[1],
                        KINDS=packed.kinds, STEP=packed.step, TANH=activation == "tanh", PRECISION=packed.precision,
                        enable_fp_fusion=True, **options)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["ids"])
def _char_cnn(ids, order, lengths, table, weights, biases, widths, out, count, characters, columns, last_row, groups,
              EP: tl.constexpr, KINDS: tl.constexpr, STEP: tl.constexpr, TANH: tl.constexpr, PRECISION: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # Find the program's filters: `widths` [groups, 5] has width, first weight, first column, number of filters, kind.
    tiles = 0
    for group in range(groups):
        tiles += tl.cdiv(tl.load(widths + 5 * group + 3), BN)
    tile = tl.program_id(0) % tiles
    first, own, own_first = 0, 0, 0
    for group in range(groups):
        own = tl.where(tile >= first, group, own)
        own_first = tl.where(tile >= first, first, own_first)
        first += tl.cdiv(tl.load(widths + 5 * group + 3), BN)
    width = tl.load(widths + 5 * own)
    weight = weights + tl.multiple_of(tl.load(widths + 5 * own + 1), 16)
    column = tl.multiple_of(tl.load(widths + 5 * own + 2), STEP)
    size = tl.multiple_of(tl.load(widths + 5 * own + 3), STEP)
    kind = tl.load(widths + 5 * own + 4)
    filter = (tile - own_first) * BN + tl.arange(0, BN)  # [BN]

    place = (tl.program_id(0) // tiles) * BM + tl.arange(0, BM)
    present = place < count
    token = tl.load(order + place, mask=present, other=0)
    longest = tl.max(tl.load(lengths + place, mask=present, other=0), axis=0)
    positions = tl.minimum(longest, characters - width) + 1
    rows = ids + token * characters  # [BM]

    best = tl.full((BM, BN), float("-inf"), tl.float32)
    for whole in tl.static_range(3):
        if KINDS & (1 << whole):
            if kind == whole:
                best = _whole(rows, table, weight, best, width, size, filter, positions, last_row, EP, 32 << whole,
                              PRECISION)
    if KINDS & 8:
        if kind == 3:
            best = _pieces(rows, table, weight, best, width, size, filter, positions, last_row, EP, BK, PRECISION)

    best += tl.load(biases + column + filter, mask=filter < size, other=0.0)[None, :]
    best = _tanh(best) if TANH else tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + token[:, None] * columns + (column + filter)[None, :], best.to(out.dtype.element_ty),
             mask=present[:, None] & (filter < size)[None, :])


@triton.jit
def _whole(rows, table, weight, best, width, size, filter, positions, last_row, EP: tl.constexpr, K: tl.constexpr,
           PRECISION: tl.constexpr):
    """Maximum over positions of windows of up to K values; `weight` [size, K] stays on chip."""
    k = tl.arange(0, K)
    resident = tl.load(weight + filter[:, None] * K + k[None, :], mask=(filter < size)[:, None], other=0.0)
    resident = tl.trans(resident)  # [K, BN]
    characters = _characters(rows, 0, width, last_row, K // EP)
    prefetched = _embedded(table, characters, 0, EP, EP)
    characters = _characters(rows, tl.minimum(1, positions - 1), width, last_row, K // EP)
    for start in range(positions):
        # The next windows, and the ids of the windows after those, are loaded while the current product runs.
        windows = prefetched
        prefetched = _embedded(table, characters, 0, EP, EP)
        characters = _characters(rows, tl.minimum(start + 2, positions - 1), width, last_row, K // EP)
        products = tl.dot(windows, resident, input_precision=PRECISION)
        best = tl.maximum(best, products, propagate_nan=tl.PropagateNan.ALL)
    return best


@triton.jit
def _pieces(rows, table, weight, best, width, size, filter, positions, last_row, EP: tl.constexpr, BK: tl.constexpr,
            PRECISION: tl.constexpr):
    """Maximum over positions of windows of any size, BK values at a time; `weight` [width * EP, size]."""
    CHARACTERS: tl.constexpr = BK // EP if BK > EP else 1
    k = tl.arange(0, BK)
    for start in range(positions):
        products = tl.zeros_like(best)
        for at in range(0, width * EP, BK):
            characters = _characters(rows, start + at // EP, width - at // EP, last_row, CHARACTERS)
            windows = _embedded(table, characters, at % EP, EP, BK // CHARACTERS)
            piece = tl.load(weight + (at + k)[:, None] * size + filter[None, :],
                            mask=(at + k < width * EP)[:, None] & (filter < size)[None, :], other=0.0)
            products = tl.dot(windows, piece, products, input_precision=PRECISION)
        best = tl.maximum(best, products, propagate_nan=tl.PropagateNan.ALL)
    return best


@triton.jit
def _characters(rows, start, left, last_row, CHARACTERS: tl.constexpr):
    """Ids of every token's characters from `start` on, [BM, CHARACTERS]; 0, a row of zeros, after the first `left`."""
    step = tl.arange(0, CHARACTERS)
    characters = tl.load(rows[:, None] + (start + step)[None, :], mask=(step < left)[None, :], other=0)
    return tl.minimum(tl.maximum(characters, 0), last_row).to(tl.int32)


@triton.jit
def _embedded(table, ids, value, EP: tl.constexpr, VALUES: tl.constexpr):
    """VALUES of every character's EP embedded values, from `value` on: ids [BM, n] -> [BM, n * VALUES]."""
    offset = tl.multiple_of(ids * EP + value, (1, VALUES))
    values = tl.load(table + offset[:, :, None] + tl.arange(0, VALUES)[None, None, :])
    return tl.reshape(values, (ids.shape[0], ids.shape[1] * VALUES))


class PackedFilters:
    """Weights of `char_cnn` in the kernel's layout, in the type of the products' operands.

    `char_embed` [V, E] and, for every width, weight [1, width, E, n] and bias [n], all on one device. `operands` as in
    `configs.tile_of`. A character's E values are padded with zeros to a power of two of at least 16.
    """

    def __init__(self, char_embed: torch.Tensor, weights, biases, operands: str, dtype: torch.dtype):
        self.operands, self.precision = operands, "ieee" if operands == "ieee" else "tf32"
        dim = char_embed.shape[1]
        padded = max(16, triton.next_power_of_2(dim))
        self.table = pad(char_embed.to(dtype), (0, padded - dim, 1, 0))
        self.biases = torch.cat([bias.float() for bias in biases])
        self.counts = [weight.shape[-1] for weight in weights]
        kinds, parts = zip(*(_packed(weight, padded, dtype, operands) for weight in weights))
        firsts, columns = (accumulate(sizes, initial=0) for sizes in (map(len, parts), self.counts))
        rows = list(zip([weight.shape[1] for weight in weights], firsts, columns, self.counts, kinds))
        self.weights = torch.cat(parts)
        self.kinds = sum({1 << kind for kind in kinds})
        self.step = math.gcd(16, *self.counts)  # divides every first column and number of filters
        self.widths = torch.tensor(rows, dtype=torch.int32).to(char_embed.device)
        self.unsorted = torch.arange(UNSORTED, device=char_embed.device)


def _packed(weight: torch.Tensor, padded: int, dtype: torch.dtype, operands: str) -> tuple[int, torch.Tensor]:
    """Kind and flattened weights of a width: [n, K] with K from `WHOLE`, or [width * padded, n] for pieces."""
    _, width, dim, _ = weight.shape
    weight, more = weight[0].to(dtype), padded - dim
    fits = [size for size in WHOLE if operands != "ieee" and width * padded <= size]
    if not fits:
        return PIECES, pad(weight, (0, 0, 0, more)).flatten()
    return WHOLE.index(fits[0]), pad(weight.permute(2, 0, 1), (0, more, 0, fits[0] // padded - width)).flatten()
