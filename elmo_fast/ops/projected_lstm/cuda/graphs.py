"""Chunks of LSTM steps as CUDA graphs: run plainly at first, captured the second time, replayed from then on."""

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

_MOST_CHUNKS = 24  # of one layer in one bucket, sizes times settings: then all are captured again

logger = logging.getLogger(__name__)

Work = Callable[[], None]
Capture = Callable[[Work], "torch.cuda.CUDAGraph | None"]
Graphs = dict[Hashable, "torch.cuda.CUDAGraph | None"]  # None for a chunk that ran plainly


def run_chunk(graphs: Graphs, key: Hashable, work: Work, capture: Capture | None) -> None:
    """Do `work`, which queues the same operations on the same addresses whenever `key` is the same.

    `graphs` are those of one layer on one set of buffers, from `capture`, where there is one. The plain first run of a
    chunk loads kernels and sets up libraries, which a capture may not do, and spares rare shapes a capture.
    """
    if key in graphs and capture:
        graphs[key] = graphs[key] or capture(work)
    elif key not in graphs and len(graphs) == _MOST_CHUNKS:
        graphs.clear()
    graph = graphs.setdefault(key, None)
    work() if graph is None else graph.replay()


class CudaCapture:
    """Captures what is replayed on one stream of the caller's, all of it into one pool of memory.

    A graph keeps the address of the scratch memory that cuBLAS had while it was captured. cuBLAS has one for each
    thread and stream, which PyTorch frees when it is asked to clear them. So captures run in a thread where nothing
    else runs, on a stream that serves one stream of the caller's: the scratch then comes from the pool, and is used by
    graphs that wait for each other. The pool lives as long as one of its graphs does, and the first is kept for that.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, thread: ThreadPoolExecutor):
        self._device, self.stream, self._thread = device, stream, thread
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None
        self._failed = False

    def __call__(self, work: Work) -> torch.cuda.CUDAGraph | None:
        """The graph of `work`; None once a capture has failed, of which a warning is given."""
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
                # no capture may make this thread's handle; made on another stream, whose scratch memory no graph reads
                torch.cuda.current_blas_handle()
            with torch.cuda.stream(self.stream), recording():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        return graph


class Captures:
    """A `CudaCapture` for each stream that asks, kept for good: at most `most`, since PyTorch's own streams are few."""

    def __init__(self, most: int = 16):
        self._most, self._lock = most, threading.Lock()
        self._made: dict[tuple[torch.device, int], CudaCapture] = {}
        # one thread, which starts with the first capture: PyTorch allows one capture at a time
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="elmo-fast-capture")

    def on(self, device: torch.device) -> CudaCapture | None:
        """What captures for the current stream of `device`; None off the GPU and, with a warning, for more streams."""
        if device.type != "cuda":
            return None
        key = device, torch.cuda.current_stream(device).cuda_stream
        with self._lock:
            if key not in self._made:
                taken = {capture.stream.cuda_stream for capture in self._made.values()}
                # PyTorch hands out a few, round and round
                drawn = (torch.cuda.Stream(device) for _ in range(4 * self._most if len(taken) < self._most else 0))
                stream = next((stream for stream in drawn if stream.cuda_stream not in taken), None)
                if stream is None:
                    logger.warning("LSTM steps run without CUDA graphs on this stream: %d others do", len(self._made))
                    return None
                self._made[key] = CudaCapture(device, stream, self._thread)
            return self._made[key]


capture_on = Captures().on
_recording_lock = threading.RLock()


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """In the body Python collects no garbage, and a Triton kernel that is not loaded raises `RuntimeError`.

    That is refused in this thread, by a hook that Triton calls before it compiles a variant, or reads and loads it.
    """
    with _recording_lock, contextlib.ExitStack() as undo:
        if gc.isenabled():
            undo.callback(gc.enable)
        gc.disable()
        with contextlib.suppress(ImportError):
            from triton.knobs import runtime

            thread, before = threading.get_ident(), runtime.jit_cache_hook

            def refuse(**asked):
                if threading.get_ident() != thread:
                    return before(**asked) if before else None
                raise RuntimeError("warmup: expected model.warmup() before a CUDA graph is captured, to load every "
                                   f"kernel; got none that loaded {asked['fn'].name} for these tensors")

            runtime.jit_cache_hook = refuse
            undo.callback(setattr, runtime, "jit_cache_hook", before)
        yield
