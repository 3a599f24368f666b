"""CPU time of a program's stages, in all of its threads."""

import contextlib
import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


class Stopwatch:
    """CPU seconds by stage. What runs inside another stage counts for itself alone; threads add up."""

    def __init__(self):
        self.seconds: Counter[str] = Counter()
        self._here, self._lock = threading.local(), threading.Lock()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The body's CPU time of this thread is that of a stage."""
        outer = getattr(self._here, "stage", None)
        self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, name: str | None) -> None:
        now, before = time.thread_time(), getattr(self._here, "stage", None)
        if before:
            with self._lock:
                self.seconds[before] += now - self._here.since
        self._here.stage, self._here.since = name, now

    def calls(self, name: str, function: Callable) -> Callable:
        """The function, its calls being of a stage."""
        @functools.wraps(function)
        def call(*arguments, **named):
            with self.stage(name):
                return function(*arguments, **named)

        return call

    def items(self, name: str, function: Callable[..., Iterable]) -> Callable[..., Iterator]:
        """The function, the items of its result being made in a stage."""
        def iterate(*arguments):
            items = iter(function(*arguments))
            while True:
                with self.stage(name):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

        return iterate


def helper_threads() -> dict[int, float]:
    """CPU seconds of this process's threads but the main one, by thread; empty where the system does not say."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return {}
    numbers = [int(path.name) for path in tasks.iterdir() if int(path.name) != os.getpid()]
    found = {}
    for number in numbers:
        with contextlib.suppress(OSError):
            found[number] = time.clock_gettime((~number << 3) | 6)  # Linux's clock of a thread's CPU time
    return found
