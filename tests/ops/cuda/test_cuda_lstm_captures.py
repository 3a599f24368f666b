"""How captures are made, with PyTorch's CUDA calls replaced by ones that note what they are asked."""

import contextlib
import gc
import itertools
import logging
import threading
from types import SimpleNamespace

import pytest
import torch

from elmo_fast.ops.cuda import graphs

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch):
    """PyTorch's streams, three of them handed out in turn, and its graphs; `events` says what happened where."""
    events, handles, pools = [], itertools.cycle([101, 102, 103]), itertools.count()
    state = SimpleNamespace(events=events, current=7)

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            events.append((capture_error_mode, pool, state.current, threading.current_thread().name))

        def capture_end(self):
            events.append(("end", gc.isenabled()))

    @contextlib.contextmanager
    def on(stream):
        before, state.current = state.current, stream.cuda_stream
        yield
        state.current = before

    stand_ins = {"Stream": lambda device: SimpleNamespace(cuda_stream=next(handles)), "CUDAGraph": Graph, "stream": on,
                 "current_stream": lambda device: SimpleNamespace(cuda_stream=state.current),
                 "graph_pool_handle": lambda: next(pools), "device": lambda device: contextlib.nullcontext()}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(graphs, "set_up_products", lambda device: events.append(("set up", state.current)))
    return state


def test_captures_of_a_stream_share_a_pool_and_a_thread_of_their_own(cuda):
    captures, thread = graphs.Captures(), "elmo-fast-capture_0"
    one = captures.on(DEVICE)
    graph = one(lambda: cuda.events.append(("work", cuda.current, torch.is_grad_enabled())))
    one(lambda: None)
    assert captures.on(DEVICE) is one and one._first is graph
    cuda.current = 8
    captures.on(DEVICE)(lambda: None)
    # products are set up once, and not on the stream of the captures
    assert cuda.events == [
        ("set up", 7), ("thread_local", 0, 101, thread), ("work", 101, False), ("end", False),
        ("thread_local", 0, 101, thread), ("end", False),
        ("set up", 8), ("thread_local", 1, 102, thread), ("end", False)]


def test_a_capture_that_fails_ends_and_is_the_last(cuda, caplog):
    def fail():
        raise RuntimeError("not permitted")

    capture = graphs.Captures().on(DEVICE)
    with caplog.at_level(logging.WARNING):
        assert [capture(work) for work in (fail, fail, lambda: None)] == [None] * 3
    assert [event[0] for event in cuda.events] == ["set up", "thread_local", "end"] and gc.isenabled()
    assert caplog.text.count("without CUDA graphs from here on, since a capture failed: not permitted") == 1


@pytest.mark.parametrize("most, streams", [(2, [101, 102, None, 101]), (5, [101, 102, 103, 101])])
def test_no_stream_serves_two_and_those_beyond_the_bound_run_without_graphs(most, streams, cuda, caplog):
    captures, found = graphs.Captures(most), []
    with caplog.at_level(logging.WARNING):
        for cuda.current in (7, 8, 9, 7):
            capture = captures.on(DEVICE)
            found.append(capture and capture.stream.cuda_stream)
    assert found == streams and caplog.text.count("without CUDA graphs on this stream: 2 others") == (most == 2)
    cuda.current = 10
    assert captures.on(DEVICE) is None and graphs.capture_on(torch.device("cpu")) is None


def test_a_chunk_runs_plainly_once_is_captured_and_then_replayed():
    queued, chunk_graphs = [], graphs.ChunkGraphs(
        lambda work: queued.append("capture") or SimpleNamespace(replay=lambda: queued.append("replay")))
    for key in ["a", "b", "a", "a", *range(23), "a"]:  # at the last number all are dropped
        chunk_graphs.run(key, lambda: queued.append(key))  # noqa: B023
    assert queued == ["a", "b", "capture", "replay", "replay", *range(23), "a"]
