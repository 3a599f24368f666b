"""Writes segments of vectors in a thread while the calling thread computes."""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from elmo_fast.files import stops
from elmo_fast.text.readers import Text
from elmo_fast.vectors.layouts.text_vectors import TextVectors
from elmo_fast.vectors.spec import OutputSpec

_QUEUED_BYTES = 64 << 20  # most bytes of queued vectors; a larger text is queued by itself
_STOP_CHECK_SECONDS = 0.1  # interval of checks for a requested stop while the queue is full


class _AbandonedError(Exception):
    """Leaves the current segment after the calling thread has failed."""


class SegmentWriter:
    """Writes texts into segments in a background thread; its errors are raised by the next call.

    `open_segment` is called in the thread. When the `with` body succeeds, the queue is written to its end; when it
    fails, the current segment is abandoned.
    """

    def __init__(self, open_segment: Callable[[], AbstractContextManager], form: OutputSpec):
        self._open_segment, self._form = open_segment, form
        self._jobs: deque[tuple[Text, np.ndarray] | Callable[[], None]] = deque()
        self._bytes = 0  # of vectors in the queue
        self._changed = threading.Condition()
        self._is_ended = self._is_abandoned = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="elmo-fast-writer", daemon=True)
        self.texts = 0  # queued since the last segment ended

    def write(self, text: Text, vectors: np.ndarray) -> None:
        """Queue the vectors of a text, [layers, T, 2 P]; waits while the queue is full."""
        self.texts += 1
        with self._changed:
            self._wait(lambda: not self._bytes or self._bytes + vectors.nbytes <= _QUEUED_BYTES)
            self._jobs.append((text, vectors))
            self._bytes += vectors.nbytes
            self._changed.notify_all()

    def end_segment(self, then: Callable[[], None]) -> None:
        """Queue the end of the segment; the thread then calls `then`."""
        self.texts = 0
        with self._changed:
            self._wait(lambda: True)
            self._jobs.append(then)
            self._changed.notify_all()

    def __enter__(self) -> "SegmentWriter":
        self._thread.start()
        return self

    def __exit__(self, kind, *_) -> None:
        is_done = False
        try:
            if kind is None:
                with self._changed:
                    self._is_ended = True
                    self._changed.notify_all()
                    self._wait(lambda: not self._jobs)
                is_done = True  # the queue is empty: a later stop abandons nothing
        finally:
            with self._changed:
                self._is_abandoned = not is_done
                self._changed.notify_all()
            self._thread.join()
        if self._error and kind is None:
            raise self._error

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        while not self._error and not is_ready():
            stops.check()
            self._changed.wait(_STOP_CHECK_SECONDS)
        if self._error:
            raise self._error

    def _work(self) -> None:
        try:
            while job := self._next():
                if not isinstance(job, tuple):
                    job()
                    continue
                with self._open_segment() as segment:
                    while isinstance(job, tuple):
                        segment.write(self._item(*job))
                        job = self._next()
                if job:
                    job()
        except _AbandonedError:
            pass
        except BaseException as error:
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _next(self) -> tuple[Text, np.ndarray] | Callable[[], None] | None:
        """Wait for the next job; None after the last."""
        with self._changed:
            while not self._jobs and not self._is_ended and not self._is_abandoned:
                self._changed.wait()
            if self._is_abandoned:
                raise _AbandonedError
            job = self._jobs.popleft() if self._jobs else None
            if isinstance(job, tuple):
                self._bytes -= job[1].nbytes
                self._changed.notify_all()
            return job

    def _item(self, text: Text, vectors: np.ndarray) -> TextVectors:
        selected = self._form.apply(vectors, text.tokens)
        return TextVectors(text.key, text.text, text.tokens, selected.positions, selected.vectors)
