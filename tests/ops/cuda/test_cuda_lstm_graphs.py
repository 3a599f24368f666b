"""Blocks, captures and memory of the CUDA LSTM's graph path, with fake graphs."""

import gc
import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo_fast.ops.projected_lstm.arguments import flat_weights
from elmo_fast.ops.projected_lstm.cuda import blocks
from elmo_fast.ops.projected_lstm.cuda import graphs as captures_module
from tests.support.gpu_lstm import check, run, weights_of
from tests.support.op_cases import LOOSE, SLOTS, TIGHT, layer, lstm_case

DEVICE = torch.device("cuda", 0)


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


def test_models_of_one_size_share_an_arena_that_is_freed_with_them(arenas):
    def layers_with_graphs():
        gc.collect()
        return [{len(bucket.graphs) for bucket in arena._buckets.values()} for arena in arenas.kept.values()]

    case, (first, second) = lstm_case(), (weights_of(lstm_case(seed=number)) for number in (0, 1))
    alone = [run(case, "highest", weights)[0] for weights in (first, second)]
    assert not torch.equal(*alone)
    assert torch.equal(run(case, "highest", first)[0], alone[0])
    assert layers_with_graphs() == [{2}]
    first["w_0"].mul_(1)  # frees the old packed weights and their graphs
    run(case, "highest", first)
    assert layers_with_graphs() == [{2}]
    del first
    assert layers_with_graphs() == [{1}]
    del second
    assert layers_with_graphs() == []


def test_arenas_and_buckets_are_bounded(graphs, monkeypatch, arenas):
    few, weight = blocks.Arenas(), torch.ones(1)
    monkeypatch.setattr(blocks, "_MOST_ARENAS", 2)
    results = [few.get(key, weight, torch.nn.Module) for key in "abacba"]
    assert results[2] is results[0] and results[4] is not results[1] and results[5] is not results[0]
    assert list(few.kept) == ["b", "a"]
    del weight, results
    assert len(few.kept) == 0
    weights = weights_of(lstm_case())
    for slots in (3, 4, 7) * 2:
        check(lstm_case(lengths=[4] * slots, clips=TIGHT), "highest", weights)
    arena, = arenas.kept.values()
    assert list(arena._buckets) == [4, 8]


def test_threads_take_turns_on_an_arena(graphs):
    def work(number):
        check(lstm_case(clips=TIGHT, seed=number), "highest", layers[number % 2], times=3)

    layers = [weights_of(lstm_case(seed=number)) for number in (0, 1)]
    for weights in layers:  # otherwise threads that share weights pack them twice
        blocks.operands(flat_weights(layer(weights)), "highest", 0.08)
    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(work, range(4))]) == 4
    assert len(graphs) == 1


# ---- captures, with PyTorch's CUDA calls replaced by recorders ----------


@pytest.fixture
def cuda():
    """Fakes of PyTorch's graphs and of three streams that are handed out in turn; `events` records the calls."""
    state = SimpleNamespace(events=[], current=7)
    handles, pools = itertools.cycle([101, 102, 103]), itertools.count()
    with mock.patch.multiple(
            torch.cuda, device=mock.MagicMock(), graph_pool_handle=lambda: next(pools),
            Stream=lambda device, priority: SimpleNamespace(cuda_stream=next(handles)),
            stream=lambda stream: mock.patch.object(state, "current", stream.cuda_stream),
            current_stream=lambda device: SimpleNamespace(cuda_stream=state.current),
            current_blas_handle=lambda: state.events.append(("set up", state.current)),
            CUDAGraph=lambda: SimpleNamespace(
                capture_begin=lambda pool, capture_error_mode: state.events.append(
                    (capture_error_mode, pool, state.current, threading.current_thread().name)),
                capture_end=lambda: state.events.append(("end", gc.isenabled())))):
        yield state


def test_captures_of_a_stream_share_a_pool_and_their_own_thread(cuda):
    captures, thread = captures_module.Captures(), "elmo-fast-capture_0"
    capture = captures.on(DEVICE)
    graph = capture(lambda: cuda.events.append(("work", cuda.current, torch.is_grad_enabled())))
    capture(lambda: None)
    assert captures.on(DEVICE) is capture and capture._first is graph
    cuda.current = 8
    captures.on(DEVICE)(lambda: None)
    # cuBLAS is set up once, and not on the stream of the captures
    assert cuda.events == [
        ("set up", 7), ("thread_local", 0, 101, thread), ("work", 101, False), ("end", False),
        ("thread_local", 0, 101, thread), ("end", False),
        ("set up", 8), ("thread_local", 1, 102, thread), ("end", False)]


def test_a_failed_capture_ends_and_is_the_last(cuda, caplog):
    capture, fail = captures_module.Captures().on(DEVICE), mock.Mock(side_effect=RuntimeError("not permitted"))
    with caplog.at_level(logging.WARNING):
        assert [capture(work) for work in (fail, fail, lambda: None)] == [None] * 3
    assert [event[0] for event in cuda.events] == ["set up", "thread_local", "end"] and gc.isenabled()
    assert caplog.text.count("without CUDA graphs from here on, since a capture failed: not permitted") == 1


@pytest.mark.parametrize("most, streams", [(2, [101, 102, None, 101]), (5, [101, 102, 103, 101])])
def test_capture_streams_are_not_shared_and_their_number_is_bounded(most, streams, cuda, caplog):
    captures = captures_module.Captures(most)
    for cuda.current, expected in zip((7, 8, 9, 7, 10), (*streams, None)):
        capture = captures.on(DEVICE)
        assert (capture and capture.stream.cuda_stream) == expected
    assert caplog.text.count(f"without CUDA graphs on this stream: {min(most, 3)} others") == streams.count(None) + 1
    assert captures.on(torch.device("cpu")) is None
