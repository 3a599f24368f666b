"""Runs the server's process: uvicorn, whose shutdown waits for running requests."""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from elmo_fast.arguments import check_file
from elmo_fast.embed.jobs import ModelChoice
from elmo_fast.environment import extra
from elmo_fast.files import stops
from elmo_fast.serve.app import Service, create_app
from elmo_fast.serve.batching import Batching
from elmo_fast.serve.limits import Limits
from elmo_fast.text.tokenizers import find_tokenizer
from elmo_fast.weights.sources import name_of

with extra("serve"):
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from elmo_fast.serve.errors import Refusal

_QUIET_SECONDS = 0.5  # of refusing requests before the end, so that late clients get an answer, not a reset
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_logger = logging.getLogger(__name__)


def run(model: ModelChoice, limits: Limits, version: str, state: str, address: tuple[str, int], name: str | None,
        api_key_file: str | None, slots: int, tokenizer: str, index: str | None) -> None:
    """Serve a model at a host and port until a signal; `name` and `version` are shown in answers."""
    split, api_key = find_tokenizer(tokenizer), api_key_file and read_api_key(api_key_file)
    with bind(*address) as listener, Batching(model.load().embedder, state, slots=slots,
                                              queue_tokens=limits.queue_tokens) as batching:
        serve(Service(batching, name or name_of(model.model), version, limits, api_key, split, index, address[0]),
              listener)


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to an address; connections are refused until the server listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        # On Windows SO_REUSEADDR would let two servers share a port.
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        listener.bind(address)
    except OSError as error:
        raise OSError("--host, --port: expected a free address of this machine, got "
                      f"{host}:{port} ({error})") from error
    return listener


def read_api_key(path: str | os.PathLike) -> str:
    """Read the API key, which is the only line of a file."""
    key = Path(check_file("--api-key-file", path)).read_bytes().decode("utf-8-sig", "replace").strip()
    if not key.isprintable() or not key or not {" ", "\ufffd"}.isdisjoint(key):
        raise ValueError(f"--api-key-file: expected one line with a key in UTF-8 in {os.fspath(path)}, without spaces")
    return key


def serve(service: Service, listener: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT, then finish requests. A second signal ends the process."""
    host, port = listener.getsockname()[:2]
    if host not in _LOOPBACK and service.api_key is None:
        _logger.warning("the server listens at %s without an API key: whoever reaches it can use it", host)
    first = service.batching.submit([[]])
    first.future.result()  # loads the kernels; a broken engine fails here
    first.release()
    gc.collect()
    # A collection over all objects loaded so far would block every request for 0.1 s. A body of a million lists would
    # start one every 700 lists and block for seconds.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if stops.is_requested():
        raise KeyboardInterrupt("interrupted before the server was ready")
    address = f"[{host}]" if ":" in host else host
    Server(service, lambda: print(f"elmo-fast: {service.name} at http://{address}:{port}", flush=True)).run([listener])


class Connection(H11Protocol):
    """A connection, which is idle until the headers of a request are complete.

    It is closed when it was idle for too long, or is idle for longest of too many connections.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin the idle time."""
        super().connection_made(transport)
        most, self.limit_concurrency = self.limit_concurrency, None  # of requests, the gate refuses too many
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if len(self.connections) > most:
            idle = [each for each in self.connections if each.timeout_keep_alive_task and each is not self
                    and not each.transport.is_closing()]
            if idle:
                min(idle, key=lambda each: each.timeout_keep_alive_task.when()).timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """Read on in the idle time, which the base ends at the first byte."""
        self.conn.receive_data(data)
        self.handle_events()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP in the form of all errors."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = Refusal(400, "expected an HTTP/1.1 request with at most 16 KiB of headers", "malformed_http",
                             headers={"Connection": "close"}).response()
            for event in (h11.Response(status_code=400, headers=answer.raw_headers), h11.Data(data=answer.body),
                          h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server of a service; `on_ready` is called when it listens."""

    def __init__(self, service: Service, on_ready: Callable[[], None] = lambda: None):
        limits = service.limits
        super().__init__(uvicorn.Config(
            create_app(service), http=Connection, ws="none", lifespan="off", log_config=None, server_header=False,
            limit_concurrency=limits.max_connections, timeout_keep_alive=limits.keep_alive_seconds))
        self._service, self._on_ready = service, on_ready
        self._drain_until: float | None = None
        self._last_open = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call `on_ready`."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame) -> None:
        """Refuse new requests; at a second signal restore and run its default action."""
        if self._drain_until is not None:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
            os._exit(128 + sig)  # the first process of a container ignores signals' default actions
        self._service.batching.drain()
        self._last_open = time.monotonic()
        self._drain_until = self._last_open + self._service.limits.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end: shortly after the last accepted request was answered, or when the drain time is up."""
        if await super().on_tick(counter):
            return True
        if self._drain_until is None:
            return False
        now, open_jobs = time.monotonic(), self._service.batching.open_jobs
        if open_jobs:
            self._last_open = now
        if late := now > self._drain_until:
            _logger.warning("%d requests were not answered within %d s and are cut off", open_jobs,
                            self._service.limits.drain_seconds)
            self._service.batching.cut_off()
        self.config.timeout_graceful_shutdown = max(1, int(self._drain_until - now))  # for bytes still being sent
        return late or now - self._last_open > _QUIET_SECONDS
