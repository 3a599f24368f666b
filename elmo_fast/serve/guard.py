"""Middleware around every request: checks the API key, limits the body, counts it in the metrics, and cleans up."""

import asyncio
import base64
import binascii
import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers

from elmo_fast.serve.errors import Refusal, client_gone
from elmo_fast.serve.limits import Limits
from elmo_fast.serve.metrics import Metrics

OPEN_ROUTES = frozenset({"/health"})  # need no key

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _StoppedReading(Exception):
    """The client took no bytes of an answer for too long."""


class Guard:
    """ASGI middleware. The app gets the complete body at once, and in its scope `elmo_fast.exit`, an `ExitStack` that
    is closed after the request.
    """

    def __init__(self, app, *, limits: Limits, metrics: Metrics, api_key: str | None, routes: frozenset[str]):
        self._app, self._limits, self._metrics = app, limits, metrics
        self._key = None if api_key is None else api_key.encode()
        self._routes = routes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def send_in_time(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            try:
                async with asyncio.timeout(self._limits.write_seconds):
                    await send(message)
            except TimeoutError:
                raise _StoppedReading from None

        try:
            with (self._metrics.in_progress.track_inprogress(), contextlib.suppress(_StoppedReading),
                  contextlib.ExitStack() as stack):
                scope["elmo_fast.exit"] = stack
                await self._run(scope, receive, send_in_time)
        finally:
            # A label per requested path would let clients create metrics without end.
            route = scope["path"] if scope["path"] in self._routes else "other"
            self._metrics.count_request(route, status, time.perf_counter() - began)

    async def _run(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            if scope["path"] not in OPEN_ROUTES:
                self._check_key(headers)
            body = await self._read(headers, receive)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        # The server sends no body where the method is HEAD in its own scope.
        await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive_body, send)

    def _check_key(self, headers: Headers) -> None:
        if self._key is not None and not hmac.compare_digest(_given_key(headers.get("authorization", "")), self._key):
            raise Refusal(401, "Authorization: expected Bearer and the server's key", "invalid_api_key",
                          headers={"WWW-Authenticate": 'Basic realm="elmo-fast", charset="UTF-8"'})

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "Content-Encoding: expected none", "encoded_body")
        max_bytes = self._limits.max_body_bytes
        too_large = Refusal(413, f"the body: expected at most {max_bytes:,} bytes", "body_too_large")
        if int(headers.get("content-length", 0)) > max_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                has_more = True
                while has_more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise client_gone()
                    body += message.get("body", b"")
                    has_more = message.get("more_body", False)
                    if len(body) > max_bytes:
                        raise too_large
        except TimeoutError:
            raise Refusal(408, f"the body: expected it within {self._limits.body_seconds} s", "body_too_slow",
                          headers={"Connection": "close"}) from None
        return bytes(body)


def _given_key(authorization: str) -> bytes:
    """Return the token of `Bearer`, or the password of `Basic`, which browsers ask their users for."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value).partition(b":")[2]
    return value.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
