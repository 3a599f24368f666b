"""All layers written where the caller wants them: the bits of a layer after the other, in every engine."""

import numpy as np
import pytest
import torch

from elmo_fast.embed.outputs import plan_of
from elmo_fast.embed.scheduler import Piece, Sentence
from elmo_fast.ops.schedule import make_schedule
from tests.support.engines import BF16_DOTS, BF16_WEIGHTS, HIGHEST, LOW, TILES, needs_native
from tests.support.models import SHAPES, bilm

pytestmark = needs_native


def scattered(layers, packed_rows, width, generator):
    """Addresses uint64 [layers, 2, S] of pieces of `width` values in poisoned memory, and that memory."""
    memory = np.full((2 * layers * packed_rows + 7, width + 3), np.nan, np.float32)
    chosen = generator.permutation(len(memory))[: 2 * layers * packed_rows]
    return (memory.ctypes.data + chosen * memory.strides[0]).astype(np.uint64).reshape(layers, 2, -1), memory, chosen


@pytest.mark.parametrize("engine", [*HIGHEST, *BF16_WEIGHTS, *BF16_DOTS, *TILES, *LOW], ids=str)
@pytest.mark.parametrize("shape", ["clips that fire", "four layers", "no projection", "no skip connections"])
@pytest.mark.parametrize("is_warm", [False, True])
def test_outputs_have_the_bits_of_layer_after_layer(engine, shape, is_warm):
    generator = np.random.default_rng(4)
    stack = bilm(SHAPES[shape], backend="native").lstm
    schedule = make_schedule([5, 0, 3, 9, 1, 2], [2, 0, 1, 0, 2, 1], 4)
    layers, h_dim, c_dim = stack.state_sizes
    rows = generator.integers(0, 7, (2, 20)).astype(np.int32)
    vectors = torch.from_numpy(generator.normal(size=(7, h_dim // 2)).astype(np.float32))
    initial = tuple(torch.from_numpy(generator.normal(size=(layers, 4, size)).astype(np.float32))
                    for size in (h_dim, c_dim))
    starts = tuple(values[:, 1] for values in initial) if is_warm else None
    addresses, memory, chosen = scattered(layers, 20, h_dim // 2, generator)
    with torch.no_grad(), engine.active():
        expected, final = stack.run(vectors, torch.from_numpy(rows), schedule, initial, starts, "native",
                                    engine.precision)
        found = stack.write(vectors, rows, schedule, initial, starts, addresses, engine.precision)
    assert all(map(torch.equal, found, final))
    written = memory[chosen, : h_dim // 2].reshape(layers, 2, 20, -1)
    for layer, right in zip(written, expected, strict=True):
        assert np.array_equal(np.concatenate(list(layer), 1), right.numpy())
    memory[chosen, : h_dim // 2] = np.nan
    assert np.isnan(memory).all()


@pytest.mark.parametrize("seed", range(20))
def test_addresses_are_those_of_the_tokens(seed):
    """Pieces of any sentences, cut anywhere: each direction writes every token of every layer once."""
    generator = np.random.default_rng(seed)
    layers, width, written = 3, 4, []
    sentences = [Sentence(number, np.zeros(length + 2, np.int32))
                 for number, length in enumerate(generator.integers(0, 12, 9))]
    for sentence in sentences:
        sentence.vectors = np.zeros((layers + 1, len(sentence.rows) - 2, width), np.float32)
    while sentences:
        chosen = sentences[: generator.integers(1, 5)]
        ends = [min(len(each.rows), each.done + int(generator.integers(1, 9))) for each in chosen]
        pieces = [Piece(each, slot, each.done, end) for slot, (each, end) in enumerate(zip(chosen, ends))]
        plan = plan_of(pieces, len(pieces), layers, width)
        schedule, (addresses, boundaries) = plan.schedule, plan.addresses(pieces)
        assert len(np.unique(addresses)) == addresses.size
        first, last = boundaries.ctypes.data, boundaries.ctypes.data + boundaries.nbytes
        step = np.concatenate([np.arange(count) for count in schedule.batch_sizes])  # the slot of each packed row
        time = np.repeat(np.arange(len(schedule.batch_sizes)), schedule.batch_sizes)
        for row, (place, when) in enumerate(zip(step, time)):
            sentence, _, begin, _ = pieces[schedule.slots[place]]
            length = len(sentence.rows) - 2
            for direction, token in enumerate((begin + when - 1, length - begin - when)):
                for layer in range(layers):
                    address = int(addresses[layer, direction, row])
                    if 0 <= token < length:
                        half = sentence.vectors[layer + 1, token, direction * width // 2 :]
                        assert address == half.ctypes.data
                        written.append(address)
                    else:
                        assert first <= address < last and (address - first) // (width // 2 * 4) % 2 == direction
        for piece in pieces:
            piece.sentence.done = piece.end
        sentences = [each for each in sentences if each.done < len(each.rows)]
    assert len(set(written)) == len(written)
