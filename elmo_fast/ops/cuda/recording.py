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
    with _lock, contextlib.ExitStack() as undo:
        if gc.isenabled():
            undo.callback(gc.enable)
        gc.disable()
        with contextlib.suppress(ImportError):
            from triton import knobs

            _refuse_to_load(knobs.runtime, undo)
        yield


def _refuse_to_load(runtime, undo: contextlib.ExitStack) -> None:
    """Until `undo`, in this thread: the hook is called before a variant is compiled, or read from disk, and loaded."""
    thread, before = threading.get_ident(), runtime.jit_cache_hook

    def refuse(**asked):
        if threading.get_ident() != thread:
            return before(**asked) if before else None
        raise RuntimeError("warmup: expected model.warmup() before a CUDA graph is captured, to load every kernel; "
                           f"got none that loaded {asked['fn'].name} for these tensors")

    runtime.jit_cache_hook = refuse
    undo.callback(setattr, runtime, "jit_cache_hook", before)
