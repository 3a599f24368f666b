"""CPU time of a program's stages, in all of its threads."""

import contextlib
import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


class _Thread(threading.local):
    """What a thread measures, without a lock that others would wait for."""

    def __init__(self, counters: list[Counter[str]]):
        self.seconds: Counter[str] = Counter()
        self.stage: str | None = None
        self.since = 0.0
        counters.append(self.seconds)


class Stopwatch:
    """CPU seconds by stage. What runs inside another stage counts for itself alone; threads add up."""

    def __init__(self):
        self._counters: list[Counter[str]] = []
        self._here = _Thread(self._counters)

    @property
    def seconds(self) -> Counter[str]:
        return sum(self._counters, Counter())

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The body's CPU time of this thread is that of a stage."""
        outer = self._here.stage
        self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, name: str | None) -> None:
        now, here = time.thread_time(), self._here
        if here.stage:
            here.seconds[here.stage] += now - here.since
        here.stage, here.since = name, now

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
