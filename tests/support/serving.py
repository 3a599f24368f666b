"""Shared by tests of the server: an engine that stops at a gate, texts, a server in a thread, requests to it.

A module that imports this one is skipped where a library of the server is missing.
"""

import socket
import threading

import numpy as np
import pytest

from elmo_fast import ElmoEmbedder
from elmo_fast.serve.limits import Limits

for library in ("fastapi", "uvicorn", "prometheus_client", "msgspec", "orjson", "httpx"):
    pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")

import httpx  # noqa: E402

from elmo_fast.serve import app, batching, server  # noqa: E402
from elmo_fast.serve.page import router  # noqa: E402, F401

SECONDS = 60  # the limit of waits that should be short


class Gate:
    """Replaces `bilm._elmo_lstm.write`: every chunk of steps reports its arrival and waits, unless the gate is open."""

    def __init__(self, bilm):
        bilm.eval()._initial_state(bilm.state)  # the warm text, which is no chunk
        self._write, self._arrived, self._passes = bilm._elmo_lstm.write, threading.Semaphore(0), threading.Semaphore(0)
        self._is_open = False
        self.errors = []  # raised in place of the next chunks
        bilm._elmo_lstm.write = self

    def __call__(self, *arguments):
        if not self._is_open:
            self._arrived.release()
            assert self._passes.acquire(timeout=SECONDS)
        if self.errors and (error := self.errors.pop(0)):
            raise error
        return self._write(*arguments)

    def wait(self):
        """Wait until a chunk arrives at the gate."""
        assert self._arrived.acquire(timeout=SECONDS)

    def let_pass(self):
        """Let the chunk at the gate pass."""
        self._passes.release()

    def close(self):
        """Stop chunks from now on."""
        self._is_open = False
        self._arrived, self._passes = threading.Semaphore(0), threading.Semaphore(0)

    def open(self):
        """Let chunks pass from now on."""
        self._is_open = True
        self._passes.release(1000)


def texts_of(lengths, seed=0):
    """Texts of these lengths, out of 50 words."""
    generator = np.random.default_rng(seed)
    return [[f"word{number}" for number in generator.integers(0, 50, length)] for length in lengths]


def equal(actual, expected):
    """Whether two lists of arrays are equal to the bit."""
    return len(actual) == len(expected) and all(
        first.dtype == second.dtype and np.array_equal(first, second) for first, second in zip(actual, expected))


class Running:
    """A server in a thread, at a free port; in a `with`. Keyword arguments are the limits' and the service's."""

    def __init__(self, bilm, slots=8, api_key=None, index=None, host="localhost", **limits):
        self.gate, self.limits = Gate(bilm), Limits(**limits)
        self.gate.open()
        self.batching = batching.Batching(ElmoEmbedder.from_bilm(bilm), bilm.state, slots=slots,
                                          queue_tokens=self.limits.queue_tokens)
        self.service = app.Service(self.batching, "tiny", "1.2.3", self.limits, api_key, index=index, host=host)
        self._socket = server.bind("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready = threading.Event()
        self.server = server.Server(self.service, self._ready.set)
        self._thread = threading.Thread(target=self.server.run, args=([self._socket],))

    def __enter__(self):
        self.batching.__enter__()
        self._thread.start()
        assert self._ready.wait(SECONDS)
        return self

    def __exit__(self, *_):
        self.gate.open()
        self.server.should_exit = True
        self._thread.join(SECONDS)
        self.batching.__exit__()
        assert not self._thread.is_alive()

    def connect(self):
        """A plain connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def metric(self, line):
        """The value of a line of `/metrics`, 0 where there is none."""
        lines = self.service.metrics.text().decode().splitlines()
        return float(dict(each.rsplit(" ", 1) for each in lines if each[:1] != "#").get(f"elmo_fast_{line}", 0))


def received(connection):
    """All bytes of a connection until the server closes it."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def embed(server, **body):
    """The response of `/v1/embed` to a JSON body."""
    return httpx.post(f"{server.url}/v1/embed", json=body, timeout=SECONDS)


def posted(route, body, more=b"Content-Length: %d\r\n"):
    """The bytes of a request with a JSON body."""
    more = more % len(body) if b"%d" in more else more
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n%s" % (route, more, body)


def reason(response, status, code):
    """The message of an error answer, whose form is checked."""
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    return error["message"]
