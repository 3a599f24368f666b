"""Blocks and replays of the CUDA LSTM's graph path, with fake graphs."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_fast.ops.projected_lstm.arguments import flat_weights
from elmo_fast.ops.projected_lstm.cuda import blocks
from tests.support.gpu_lstm import check, weights_of
from tests.support.op_cases import LOOSE, SLOTS, TIGHT, layer, lstm_case


@settings(deadline=None, max_examples=50)  # the loops below are slow
@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 400), st.sampled_from([3, 64, 1024]))
def test_blocks_contain_every_packed_row_once(lengths, most_rows, most_slots):
    batch_sizes = np.array([sum(length > step for length in lengths) for step in range(max(lengths, default=0))], int)
    first_row, steps_of, all_rows = np.cumsum(batch_sizes) - batch_sizes, {}, []
    for block in blocks.blocks(batch_sizes, most_rows, most_slots):
        assert len(block.rows) <= most_rows or block.steps == 1
        assert block.bucket == blocks.bucket_of(block.slots) and block.slots <= most_slots
        assert block.packed_rows.dtype == block.batch_sizes.dtype == np.int32 and block.batch_sizes.min() >= 1
        first = steps_of.setdefault(block.slot, 0)
        for step, packed_rows in enumerate(block.packed_rows):
            rows = first_row[first + step] + block.slot + np.arange(block.batch_sizes[step])
            assert packed_rows.tolist() == rows.tolist() + [-1] * (block.bucket - len(rows))
        steps_of[block.slot] += block.steps
        all_rows += block.rows.tolist()
    assert sorted(all_rows) == list(range(int(batch_sizes.sum())))


def test_every_setting_and_layer_has_its_own_graphs(graphs):
    """Clips, starts, weights and inputs in turn on one arena per operand type, until all graphs are replayed."""
    layers = [weights_of(lstm_case(seed=number)) for number in (0, 1)]
    calls = [(LOOSE, "highest", 0, False), (LOOSE, "highest", 1, False), (LOOSE, "medium", 1, False),
             (LOOSE | {"cell_clip": 0.3}, "highest", 0, True), (TIGHT, "medium", 0, True)]
    plain, _, replayed = ([
        check(lstm_case(slots=SLOTS, starts=starts, clips=clips, seed=seed), precision, layers[number])
        for clips, precision, number, starts in calls] for seed in (0, 1, 0))
    assert len(graphs) == 2 and all(capture.replayed for capture in graphs)
    assert all(map(torch.equal, itertools.chain(*plain), itertools.chain(*replayed)))


@pytest.mark.parametrize("length", [1, 31, 50])
def test_any_length_replays_a_few_graphs(length, graphs):
    check(lstm_case(lengths=[length] * 2, clips=TIGHT), "highest", times=4)
    sizes = [size for _, size in blocks.chunks_of(length)]
    assert graphs[0].captured == len(set(sizes)) <= 5
    assert graphs[0].replayed == 4 * len(sizes) - graphs[0].captured


def test_threads_take_turns_on_an_arena(graphs):
    def work(number):
        check(lstm_case(clips=TIGHT, seed=number), "highest", layers[number % 2], times=3)

    layers = [weights_of(lstm_case(seed=number)) for number in (0, 1)]
    for weights in layers:  # otherwise threads that share weights pack them twice
        blocks.operands(flat_weights(layer(weights)), "highest", 0.08)
    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(work, range(4))]) == 4
    assert len(graphs) == 1


