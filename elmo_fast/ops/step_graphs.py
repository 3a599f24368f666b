"""Chunks of LSTM steps as CUDA graphs: run plainly at first, captured the second time, replayed from then on."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

import torch

_MOST_GRAPHS = 24  # of one bucket: chunk sizes times settings

logger = logging.getLogger(__name__)


class Graph(Protocol):
    """What a capture gives."""

    def replay(self) -> None:
        """Queue the captured work again, on the current stream."""


Capture = Callable[[Callable[[], None]], Graph]


class Capturing:
    """`capture` until it fails once: from then on no graph is made, and a warning has said why."""

    def __init__(self, capture: Capture | None):
        self._capture = capture

    def __bool__(self) -> bool:
        return self._capture is not None

    def __call__(self, work: Callable[[], None]) -> Graph | None:
        """The graph of `work`, or None."""
        try:
            return self._capture(work)
        except RuntimeError as error:
            logger.warning("LSTM steps run without CUDA graphs from here on, since a capture failed: %s", error)
            self._capture = None
            return None


class ChunkGraphs:
    """The graphs of one set of buffers, at most `most`; the one unused for longest goes first.

    A capture records what `work()` queues without running it. Without one every chunk runs plainly. The plain first
    run loads kernels and sets up libraries, which a capture may not do, and spares rare shapes a capture.
    """

    def __init__(self, capturing: Capturing, most: int = _MOST_GRAPHS):
        self._capturing, self._most = capturing, most
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self._seen: set[Hashable] = set()

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do `work`, which queues the same operations on the same addresses whenever `key` is the same."""
        graph = self._graphs.get(key)
        if graph is None and key in self._seen and self._capturing:
            graph = self._capturing(work)
        self._seen.add(key)
        if graph is None:
            return work()
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        while len(self._graphs) > self._most:
            self._graphs.popitem(last=False)
        graph.replay()


def capture_on(device: torch.device) -> Capture | None:
    """What captures on `device`: None where there are no graphs."""
    return CudaCapture(device) if device.type == "cuda" else None


class CudaCapture:
    """Captures into graphs that share one pool of memory, so they must be replayed on one stream, one at a time."""

    _one_at_a_time = threading.Lock()  # PyTorch allows one capture in a process

    def __init__(self, device: torch.device):
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        with self._one_at_a_time, torch.cuda.stream(self._stream):
            _forget_workspaces()
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
            finally:
                _forget_workspaces()
        return graph


def _forget_workspaces() -> None:
    """Let the capture's products allocate scratch of its own, in its pool: what eager calls use may be freed or busy."""
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:
        forget()
