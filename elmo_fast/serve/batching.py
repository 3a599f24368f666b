"""Continuous batching across requests: their texts share the slots of one engine thread.

A text begins with the next chunk of steps that has a free slot, and its vectors are delivered when it ends, whatever
else runs. Requests take turns, so that a request with many texts does not delay small ones; long texts never occupy
all slots, so that short texts can overtake them.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

import numpy as np

from elmo_fast.arguments import DEFAULT_BATCH_SIZE, FREE_STATES, MOST_SENTENCES, check_choice, check_count
from elmo_fast.embed.embedder import Embedder
from elmo_fast.engine.stream import SlotStream
from elmo_fast.environment import extra
from elmo_fast.serve.limits import Limits

with extra("serve"):
    from elmo_fast.serve.errors import Refusal, draining

LONG_TEXT = 1024  # tokens above which a text counts as long
_LONG_SHARE = 0.75  # largest share of the slots that run long texts
_FAILURES = 3  # failed runs in a row after which the engine counts as failing
_LONGEST_WAIT = 600  # seconds; the longest wait that a client is told

_logger = logging.getLogger(__name__)


class Job:
    """The texts of a request. `future` gets their vectors, a list of float32 [layers, T, 2 P]; `release` ends it."""

    def __init__(self, texts: list[Sequence[str]], tokens: int, release: Callable[["Job"], None]):
        self.texts, self.tokens = texts, tokens
        self.future: Future[list[np.ndarray]] = Future()
        self.future.set_running_or_notify_cancel()  # only the engine thread or `release` completes it
        self.waiting = deque(range(len(texts)))
        self.vectors: list[np.ndarray | None] = [None] * len(texts)
        self.unfinished = len(texts)
        self._release = release

    def release(self) -> None:
        """Return the tokens to the queue and stop texts that still run; call when the response is sent or abandoned."""
        self._release(self)


class Batching:
    """The engine thread and its queue. A context manager: on exit the thread stops, and open jobs fail.

    `slots` texts run at a time. `queue_tokens` limits the tokens of all open requests, boundaries included, and so the
    memory of their vectors. `on_chunk(texts, tokens)` is called after every chunk with the numbers of texts that ran in
    it and of tokens computed.
    """

    def __init__(self, embedder: Embedder, state: str = "warm", *, slots: int = DEFAULT_BATCH_SIZE,
                 queue_tokens: int = Limits.queue_tokens):
        self.state = check_choice("state", state, FREE_STATES)  # of all requests, which share the slots
        self.embedder = embedder
        self.slots = check_count("slots", slots, most=MOST_SENTENCES)
        self.queue_tokens = check_count("queue_tokens", queue_tokens)
        self.failures = 0  # failed runs of the engine in a row
        self.on_chunk: Callable[[int, int], None] = lambda texts, tokens: None
        self._most_long = max(1, int(slots * _LONG_SHARE))
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()  # jobs with waiting texts; the first is next
        self._open: set[Job] = set()
        self._alone: deque[tuple[Job, int]] = deque()  # texts of a run that failed
        self.held_tokens = 0  # of accepted requests without a response
        self.is_draining = self._is_closed = False
        self._computed_tokens, self._computing_seconds = 0, 0.0
        self._begin_stream()
        self._thread = threading.Thread(target=self._work, name="elmo-fast engine", daemon=True)

    def __enter__(self) -> "Batching":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.drain()
        self.cut_off()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def open_jobs(self) -> int:
        """Number of accepted requests without a response."""
        return len(self._open)

    @property
    def waiting_texts(self) -> int:
        """Number of accepted texts that have not begun."""
        with self._changed:
            return sum(len(job.waiting) for job in self._jobs) + len(self._alone)

    @property
    def running_texts(self) -> int:
        """Number of texts in slots."""
        return len(self._running)

    @property
    def is_failing(self) -> bool:
        """Whether the engine's last runs all failed."""
        return self.failures >= _FAILURES

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.is_draining = True  # without the lock, since signal handlers call it

    def cut_off(self) -> None:
        """Fail all open jobs."""
        for job in list(self._open):
            job.release()

    def submit(self, texts: list[Sequence[str]]) -> Job:
        """Queue tokenized texts; `Refusal` if they exceed the queue or its free space, and while draining."""
        tokens = sum(len(text) + 2 for text in texts)
        if tokens > self.queue_tokens:
            raise Refusal(413, f"expected at most {self.queue_tokens:,} tokens in a request, got {tokens:,} (with the "
                          "boundaries of its texts)", "too_many_tokens")
        job = Job(texts, tokens, self._release)
        with self._changed:
            if self.is_draining:
                raise draining("the server is shutting down")
            excess = self.held_tokens + tokens - self.queue_tokens
            if excess > 0:
                raise Refusal(429, f"the queue of {self.queue_tokens:,} tokens has no room for {tokens:,} more",
                              "queue_full", headers={"Retry-After": str(self._seconds_for(excess))})
            self.held_tokens += tokens
            self._open.add(job)
            if texts:
                self._jobs.append(job)
                self._changed.notify_all()
            else:
                job.future.set_result([])
        return job

    def _seconds_for(self, tokens: int) -> int:
        """Seconds to compute `tokens` at the rate so far, rounded up: at least 1, and 1 before the first chunk."""
        seconds = tokens * self._computing_seconds / max(1, self._computed_tokens)
        return min(_LONGEST_WAIT, max(1, math.ceil(seconds)))

    def _release(self, job: Job) -> None:
        with self._changed:
            if job not in self._open:
                return
            self._open.remove(job)
            self.held_tokens -= job.tokens
            job.waiting.clear()
            job.vectors = []
            if job in self._jobs:
                self._jobs.remove(job)
            if not job.future.done():
                job.future.set_exception(draining("the server has shut down"))

    def _begin_stream(self) -> None:
        self._stream = SlotStream(self.embedder.model, self.slots, self.state)
        self._running: dict[int, tuple[Job, int]] = {}  # number in the stream -> job, and number of its text
        self._taken = 0

    def _work(self) -> None:
        while self._wait():
            try:
                began, self._taken = time.monotonic(), 0
                for rows, results in self._stream.run_as_they_come(self._take):
                    self.on_chunk(len(self._running), rows)
                    self._deliver(results)
                    began, previous = time.monotonic(), began
                    self._computed_tokens += rows
                    self._computing_seconds += began - previous
            except Exception as error:
                self._recover(error)
            else:
                self.failures = 0

    def _wait(self) -> bool:
        """Wait for texts; False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._alone or self._is_closed)
            return not self._is_closed

    def _take(self) -> Sequence[str] | None:
        """The next text for a free slot; requests take turns."""
        with self._changed:
            item = self._choose()
            if item is None:
                return None
            job, number = item
            self._running[self._taken] = item
            self._taken += 1
            return job.texts[number]

    def _choose(self) -> tuple[Job, int] | None:
        while self._alone:
            if self._running:
                return None
            if not self._alone[0][0].future.done():
                return self._alone.popleft()
            self._alone.popleft()
        for _ in range(len(self._jobs)):
            job = self._jobs[0]
            self._jobs.rotate(-1)
            if len(job.texts[job.waiting[0]]) > LONG_TEXT and self._long_running() >= self._most_long:
                continue
            number = job.waiting.popleft()
            if not job.waiting:
                self._jobs.pop()
            return job, number
        return None

    def _long_running(self) -> int:
        return sum(len(job.texts[number]) > LONG_TEXT for job, number in self._running.values())

    def _deliver(self, results: Iterable[tuple[int, np.ndarray]]) -> None:
        with self._changed:
            for number, vectors in results:
                if number in self._running:
                    job, text = self._running.pop(number)
                    if not job.future.done():
                        job.vectors[text] = vectors
                        job.unfinished -= 1
                        if not job.unfinished:
                            job.future.set_result(job.vectors)
            released = {number for number, (job, _) in self._running.items() if job.future.done()}
            if released:
                self._stream.drop(released)
                for number in released:
                    del self._running[number]

    def _recover(self, error: Exception) -> None:
        """Run again, alone, the texts of a run that failed; a text that ran alone fails its request."""
        with self._changed:
            running = [item for item in self._running.values() if not item[0].future.done()]
            if len(running) == 1:
                self.failures += not isinstance(error, ValueError)
                job = running[0][0]
                self._alone = deque(item for item in self._alone if item[0] is not job)
                if job.waiting:
                    job.waiting.clear()
                    self._jobs.remove(job)
                job.future.set_exception(error)
            else:
                self._alone.extendleft(reversed(running))
            self._begin_stream()
        if not isinstance(error, ValueError):
            _logger.error("the engine failed with %d texts: %s", len(running), error, exc_info=error)
