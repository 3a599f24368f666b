"""What tests of the server share: an engine that stops at a gate, texts, and a server in a thread."""

import contextlib
import threading

import numpy as np

SECONDS = 60  # for whatever should come at once


class Gate:
    """In place of `bilm.run`: every chunk of steps announces itself and waits, until the gate is left open."""

    def __init__(self, bilm):
        self._run, self._arrived, self._passes = bilm.run, threading.Semaphore(0), threading.Semaphore(0)
        self._is_open = False
        self.errors = []  # raised in place of the next chunks
        bilm.run = self

    def __call__(self, *arguments):
        if not self._is_open:
            self._arrived.release()
            assert self._passes.acquire(timeout=SECONDS)
        if self.errors and (error := self.errors.pop(0)):
            raise error
        return self._run(*arguments)

    def wait(self):
        """Until a chunk stands at the gate."""
        assert self._arrived.acquire(timeout=SECONDS)

    def let_pass(self):
        """The chunk that stands at the gate."""
        self._passes.release()

    def open(self):
        """Let all chunks pass from now on."""
        self._is_open = True
        self._passes.release(1000)


def texts_of(lengths, seed=0):
    """Texts of so many tokens, out of 50 words."""
    generator = np.random.default_rng(seed)
    return [[f"word{number}" for number in generator.integers(0, 50, length)] for length in lengths]


def equal(found, expected):
    """Whether two lists of arrays are equal to the bit."""
    return len(found) == len(expected) and all(
        first.dtype == second.dtype and np.array_equal(first, second) for first, second in zip(found, expected))


@contextlib.contextmanager
def running(server, sockets):
    """A uvicorn server in a thread, once it listens."""
    ready = threading.Event()
    server._on_ready = ready.set
    thread = threading.Thread(target=server.run, args=(sockets,))
    thread.start()
    try:
        assert ready.wait(SECONDS)
        yield
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()
