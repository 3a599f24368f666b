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
    state = SimpleNamespace(events=events, current=7, fails=False)

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            assert capture_error_mode == "thread_local"
            events.append(("begin", pool, state.current, threading.current_thread().name))

        def capture_end(self):
            assert not gc.isenabled()
            events.append(("end",))

    @contextlib.contextmanager
    def on(stream):
        before, state.current = state.current, stream.cuda_stream
        yield
        state.current = before

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=next(handles)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=state.current))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(graphs, "set_up_products",
                        lambda device: events.append(("set up", state.current, threading.current_thread().name)))
    return state


def test_captures_of_a_stream_share_a_pool_and_a_thread_of_their_own(cuda):
    captures = graphs.Captures()
    one = captures.on(DEVICE)
    graph = one(lambda: cuda.events.append(("work", cuda.current, torch.is_grad_enabled())))
    assert captures.on(DEVICE) is one and one._first is graph
    one(lambda: None)
    assert one._first is graph
    cuda.current = 8
    other = captures.on(DEVICE)
    other(lambda: None)
    begins = [event for event in cuda.events if event[0] == "begin"]
    assert [event[1:3] for event in begins] == [(0, 101), (0, 101), (1, 102)]
    assert {event[3] for event in begins} == {"elmo-fast-capture_0"}
    assert cuda.events[:4] == [("set up", 7, begins[0][3]), begins[0], ("work", 101, False), ("end",)]
    assert [event[0] for event in cuda.events].count("set up") == 2  # not on the stream of the captures, and not again


def test_a_capture_ends_also_when_its_work_fails(cuda):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        graphs.Captures().on(DEVICE)(fail)
    assert [event[0] for event in cuda.events] == ["set up", "begin", "end"] and gc.isenabled()


def test_streams_beyond_the_bound_run_without_graphs(cuda, caplog):
    captures = graphs.Captures(most=2)
    with caplog.at_level(logging.WARNING):
        for cuda.current in (7, 8, 9, 7):
            found = captures.on(DEVICE)
            assert (found is None) == (cuda.current == 9)
    assert caplog.text.count("without CUDA graphs on this stream: 2 others") == 1


def test_no_stream_serves_two(cuda):
    captures = graphs.Captures(most=5)
    streams = []
    for cuda.current in (1, 2, 3, 4):
        found = captures.on(DEVICE)
        streams.append(found and found.stream.cuda_stream)
    assert streams == [101, 102, 103, None]


def test_there_are_no_graphs_on_a_cpu():
    assert graphs.capture_on(torch.device("cpu")) is None


def test_the_graph_unused_for_longest_goes(caplog):
    replayed, ran = [], []

    def capture(work):
        return SimpleNamespace(replay=lambda: (replayed.append(work), work()))

    chunk_graphs = graphs.ChunkGraphs(graphs.Capturing(capture), most=2)
    work = {key: lambda key=key: ran.append(key) for key in "abc"}
    for key in "aabbccab":
        chunk_graphs.run(key, work[key])
    assert ran == list("aabbccab")  # each of them once, plainly or replayed
    assert replayed == [work[key] for key in "abcab"]
    assert list(chunk_graphs._graphs) == ["a", "b"]
