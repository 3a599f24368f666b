"""Runs chunks of LSTM steps as CUDA graphs: without a graph at first, captured the second time, then replayed."""

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

_MOST_CHUNKS = 24  # chunks per layer and bucket, sizes times settings; when exceeded, all are captured again

logger = logging.getLogger(__name__)

Work = Callable[[], None]
Capture = Callable[[Work], "torch.cuda.CUDAGraph | None"]
Graphs = dict[Hashable, "torch.cuda.CUDAGraph | None"]  # None for a chunk that ran once, without a graph


def run_chunk(graphs: Graphs, key: Hashable, work: Work, capture: Capture | None) -> None:
    """Run `work`, which queues the same operations on the same addresses for the same `key`.

    `graphs` belong to one layer on one set of buffers; `capture` makes them, or is None. The first run of a chunk,
    without a graph, loads kernels and initializes libraries, which is forbidden during a capture; rare shapes are never
    captured.
    """
    if key in graphs and capture:
        graphs[key] = graphs[key] or capture(work)
    elif key not in graphs and len(graphs) == _MOST_CHUNKS:
        graphs.clear()
    graph = graphs.setdefault(key, None)
    work() if graph is None else graph.replay()


class CudaCapture:
    """Captures graphs that are replayed on one stream of the caller, all of them into one memory pool.

    A graph stores the address of the cuBLAS workspace during its capture. cuBLAS has a workspace per thread and stream,
    which PyTorch frees when it is asked to clear workspaces. Captures therefore run in a thread that does nothing else,
    on a capture stream for one stream of the caller: the workspace comes from the pool, and the graphs that use it run
    one after the other. The pool lives as long as one of its graphs, so the first graph is kept.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, thread: ThreadPoolExecutor):
        self._device, self.stream, self._thread = device, stream, thread
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None
        self._failed = False

    def __call__(self, work: Work) -> torch.cuda.CUDAGraph | None:
        """Capture the graph of `work`; None, after a warning, if this or an earlier capture failed."""
        try:
            graph = None if self._failed else self._thread.submit(self._capture, work).result()
        except RuntimeError as error:
            logger.warning("LSTM steps run without CUDA graphs from here on, since a capture failed: %s", error)
            self._failed, graph = True, None
        self._first = self._first or graph
        return graph

    def _capture(self, work: Work) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.no_grad():
            if self._first is None:
                # Create this thread's cuBLAS handle, which is forbidden during a capture, on a stream no graph uses.
                torch.cuda.current_blas_handle()
            with torch.cuda.stream(self.stream), _no_garbage_collection():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        return graph


class Captures:
    """A `CudaCapture` per stream, never freed; at most `most`, since PyTorch has a small pool of streams."""

    def __init__(self, most: int = 16):
        self._most, self._lock = most, threading.Lock()
        self._made: dict[tuple[torch.device, int], CudaCapture | None] = {}  # by device and stream
        # a single thread, started by the first capture: PyTorch allows one capture at a time
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elmo-fast-capture")

    def on(self, device: torch.device) -> CudaCapture | None:
        """The capture for the current stream of `device`; None off the GPU, and with a warning if `most` is reached."""
        if device.type != "cuda":
            return None
        key = device, torch.cuda.current_stream(device).cuda_stream
        with self._lock:
            if key not in self._made:
                taken = {capture.stream.cuda_stream for capture in self._made.values() if capture}
                # PyTorch returns the streams of a pool in turn; users' streams come from the pool of low priority.
                most = 4 * self._most if len(taken) < self._most else 0
                drawn = (torch.cuda.Stream(device, priority=-1) for _ in range(most))
                stream = next((stream for stream in drawn if stream.cuda_stream not in taken), None)
                if stream is None:
                    logger.warning("LSTM steps run without CUDA graphs on this stream: %d others do", len(taken))
                self._made[key] = stream and CudaCapture(device, stream, self._thread)
            return self._made[key]


capture_on = Captures().on


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in the body: freeing GPU memory is forbidden during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
