"""What holds while a forward is recorded into a user's CUDA graph.

CUDA neither loads nor unloads a module while a stream is captured: an attempt ends the capture. Triton loads a variant
of a kernel at its first launch and unloads it when nothing refers to it any more. This project's kernels, which live as
long as the process, refer to all of theirs; those of others may be freed by Python's garbage collector.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.RLock()


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """In the body Python collects no garbage, and a Triton kernel that is not loaded raises `RuntimeError`."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with _loaded_kernels_only():
            yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def _loaded_kernels_only() -> Iterator[None]:
    try:
        from triton import knobs
    except ImportError:
        yield
        return
    thread = threading.get_ident()
    with _lock:
        before = knobs.runtime.jit_cache_hook  # called before a variant is compiled, or read from disk, and loaded

        def refuse(**asked):
            if threading.get_ident() != thread:
                return before(**asked) if before else None
            raise RuntimeError("warmup: expected model.warmup() before a CUDA graph is captured, to load every kernel; "
                               f"got none that loaded {asked['fn'].name} for these tensors")

        knobs.runtime.jit_cache_hook = refuse
        try:
            yield
        finally:
            knobs.runtime.jit_cache_hook = before
