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


class ChunkGraphs:
    """The graphs of one set of buffers, at most `most`; the one unused for longest goes first.

    `capture(work)` records what `work()` queues without running it. Without it every chunk runs plainly. The plain
    first run loads kernels and sets up libraries, which a capture may not do, and spares rare shapes a capture.
    """

    def __init__(self, capture: Capture | None, most: int = _MOST_GRAPHS):
        self._capture, self._most = capture, most
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self._seen: set[Hashable] = set()

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do `work`, which queues the same operations on the same addresses whenever `key` is the same."""
        if self._capture is None or (key not in self._graphs and key not in self._seen):
            self._seen.add(key)
            return work()
        if key not in self._graphs and not self._captured(key, work):
            return work()
        self._graphs.move_to_end(key)
        self._graphs[key].replay()

    def _captured(self, key: Hashable, work: Callable[[], None]) -> bool:
        try:
            self._graphs[key] = self._capture(work)
        except RuntimeError as error:
            logger.warning("LSTM steps run without CUDA graphs from here on, since a capture failed: %s", error)
            self._capture = None
            return False
        while len(self._graphs) > self._most:
            self._graphs.popitem(last=False)
        return True


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
