"""Writes segments of vectors in a thread while the calling thread computes."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue

import numpy as np

from elmo_fast.files import stops
from elmo_fast.text.readers import Text
from elmo_fast.vectors.layouts.text_vectors import TextVectors
from elmo_fast.vectors.spec import OutputSpec

_QUEUED_BYTES = 64 << 20  # most bytes of queued vectors; a larger text is queued by itself
_PAUSE = 0.005  # seconds between looks at a full queue


class _AbandonedError(Exception):
    """Leaves the current segment after the calling thread has failed."""


class SegmentWriter:
    """Writes texts into segments in a background thread; its errors are raised by the next call.

    `open_segment` is called in the thread. When the `with` body succeeds, the queue is written to its end; when it
    fails, the current segment is abandoned.
    """

    def __init__(self, open_segment: Callable[[], AbstractContextManager], form: OutputSpec):
        self._open_segment, self._form = open_segment, form
        self._jobs: SimpleQueue[tuple[Text, np.ndarray] | Callable[[], None] | None] = SimpleQueue()  # None is the end
        self._queued = self._written = 0  # bytes of vectors, counted by the calling thread and by the other one
        self._is_abandoned = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="elmo-fast-writer", daemon=True)
        self.texts = 0  # queued since the last segment ended

    def write(self, text: Text, vectors: np.ndarray) -> None:
        """Queue the vectors of a text, [layers, T, 2 P]; waits while the queue is full."""
        self.texts += 1
        while self._queued > self._written and self._queued - self._written + vectors.nbytes > _QUEUED_BYTES:
            self._check()
            time.sleep(_PAUSE)
        self._check()
        self._queued += vectors.nbytes
        self._jobs.put((text, vectors))

    def end_segment(self, then: Callable[[], None]) -> None:
        """Queue the end of the segment; the thread then calls `then`."""
        self._check()
        self.texts = 0
        self._jobs.put(then)

    def __enter__(self) -> "SegmentWriter":
        self._thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self._jobs.put(None)
                while self._thread.is_alive():
                    stops.check()
                    self._thread.join(_PAUSE)
        finally:
            self._is_abandoned = True
            self._jobs.put(None)
            self._thread.join()
        if self._error and kind is None:
            raise self._error

    def _check(self) -> None:
        """Raise the thread's error, or a requested stop."""
        if self._error:
            raise self._error
        stops.check()

    def _work(self) -> None:
        try:
            job = self._next()
            while job:
                if isinstance(job, tuple):
                    with self._open_segment() as segment:
                        while isinstance(job, tuple):
                            segment.write(self._item(*job))
                            self._written += job[1].nbytes
                            job = self._next()
                else:
                    job()
                    job = self._next()
        except _AbandonedError:
            pass
        except BaseException as error:
            self._error = error

    def _next(self) -> tuple[Text, np.ndarray] | Callable[[], None] | None:
        """Wait for the next job; None after the last."""
        job = self._jobs.get()
        if self._is_abandoned:
            raise _AbandonedError
        return job

    def _item(self, text: Text, vectors: np.ndarray) -> TextVectors:
        selected = self._form.apply(vectors, text.tokens)
        return TextVectors(text.key, text.text, text.tokens, selected.positions, selected.vectors)
