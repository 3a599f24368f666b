"""The gate of the server: host, origin, key, size and form of every request, and its texts, before a route runs."""

import asyncio
import base64
import binascii
import contextlib
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args, get_origin, get_type_hints

from elmo_fast.environment import extra
from elmo_fast.serve.limits import Limits
from elmo_fast.text.tokenizers import Tokenizer

with extra("serve"):
    import msgspec
    from fastapi import Request
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from elmo_fast.serve.errors import Refusal, client_gone
    from elmo_fast.serve.metrics import Metrics

OPEN_ROUTES = frozenset({"/health"})  # need no key, and are answered by a full server
_MOST_HEADERS = 1 << 14  # bytes
_MOST_BODIES = 64  # of the largest size that memory holds at a time
_MAX_CHARACTERS = 100  # of a client's text in an error
_place = re.compile(r"(?P<reason>.*) - at `\$\.(?P<place>.*?)`|.* field `(?P<field>.*)`", re.DOTALL).fullmatch
# Hosts that no page of another site has: addresses, and names without a dot or below localhost.
_LOCAL = r"[\d.]+|\[[\da-f:.]*\]|[^.:]*|[^:]*\.localhost"


class Gate:
    """ASGI middleware: refuses a request, or passes its complete body on at once, and counts it in the metrics.

    Without an API key the requests of other sites' pages are refused, also of those whose names resolve to this
    machine; `host` is the server's own name. The scope has `elmo_fast.exit`, an `ExitStack` that is closed after the
    request.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, metrics: Metrics, api_key: str | None, host: str,
                 routes: frozenset[str]):
        self._app, self._limits, self._metrics = app, limits, metrics
        self._is_own = re.compile(rf"(?:{_LOCAL}|{re.escape(host.lower())})(?::\d*)?").fullmatch
        self._key = None if api_key is None else api_key.encode()
        self._routes = routes
        self._body_bytes = 0  # of all requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def send_in_time(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            async with asyncio.timeout(self._limits.write_seconds):
                await send(message)

        self._metrics.running += 1
        try:
            with contextlib.suppress(TimeoutError), contextlib.ExitStack() as stack:  # the client reads nothing
                scope["elmo_fast.exit"] = stack
                await self._run(scope, receive, send_in_time)
        finally:
            self._metrics.running -= 1
            # A label per requested path would let clients create metrics without end.
            route = scope["path"] if scope["path"] in self._routes else "other"
            self._metrics.count_request(route, status, time.perf_counter() - began)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check(scope["path"] in OPEN_ROUTES, headers)
            body = await self._read(receive, scope["elmo_fast.exit"])
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        # The server sends no body where the method is HEAD in its own scope.
        await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive_body, send)

    def _check(self, is_open: bool, headers: Headers) -> None:
        """Check all that the headers say; the key protects from other sites' pages, which do not know it."""
        if self._metrics.running > self._limits.max_connections and not is_open:
            raise Refusal(503, f"expected at most {self._limits.max_connections:,} requests at a time",
                          "too_many_requests", headers={"Retry-After": "1"})
        if self._key is None:
            self._check_site(headers.get("host", "localhost").lower(), headers.get("origin"))
        elif not is_open and not hmac.compare_digest(_given_key(headers.get("authorization", "")), self._key):
            raise Refusal(401, "Authorization: expected Bearer and the server's key", "invalid_api_key",
                          headers={"WWW-Authenticate": 'Basic realm="elmo-fast", charset="UTF-8"'})
        if sum(len(name) + len(value) for name, value in headers.raw) > _MOST_HEADERS:
            raise Refusal(431, f"the headers: expected at most {_MOST_HEADERS:,} bytes", "headers_too_large")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "Content-Encoding: expected none", "encoded_body")
        if int(headers.get("content-length", 0)) > self._limits.max_body_bytes:
            raise self._too_large()

    def _check_site(self, host: str, origin: str | None) -> None:
        if not self._is_own(host):
            raise Refusal(421, f"Host: expected an address, a name without a dot or that of --host, got {host!r:.80}; "
                          "with an API key every name is answered", "unknown_host")
        if origin is not None and origin.partition("://")[2].lower() != host:
            raise Refusal(403, f"Origin: expected that of {host!r:.80}, got {origin!r:.80}", "other_origin")

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body: expected at most {self._limits.max_body_bytes:,} bytes", "body_too_large")

    async def _read(self, receive: Receive, stack: contextlib.ExitStack) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                has_more = True
                while has_more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise client_gone()
                    piece, has_more = message.get("body", b""), message.get("more_body", False)
                    body += piece
                    self._hold(len(piece))
                    if len(body) > self._limits.max_body_bytes:
                        raise self._too_large()
        except TimeoutError:
            raise Refusal(408, f"the body: expected it within {self._limits.body_seconds} s", "body_too_slow",
                          headers={"Connection": "close"}) from None
        finally:
            stack.callback(self._hold, -len(body))
        return bytes(body)

    def _hold(self, size: int) -> None:
        self._body_bytes += size
        if size > 0 and self._body_bytes > _MOST_BODIES * self._limits.max_body_bytes:
            raise Refusal(503, "the bodies of all requests: expected at most "
                          f"{_MOST_BODIES * self._limits.max_body_bytes:,} bytes", "too_many_bytes",
                          headers={"Retry-After": "1"})


class Reader:
    """Reads JSON bodies and checks their texts in one thread beside the event loop, one body after the other."""

    def __init__(self, limits: Limits, split: Tokenizer):
        self._limits, self._split = limits, split
        self._thread = ThreadPoolExecutor(1, "elmo-fast bodies")

    async def run(self, function: Callable, *arguments) -> Any:
        """Call a function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def of(self, kind: type[msgspec.Struct], check: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Any]]:
        """Make a dependency of a route: what `check` makes of the body, a `kind`."""
        decoder = msgspec.json.Decoder(kind)

        async def dependency(request: Request) -> Any:
            body = await request.body()
            media_type = request.headers.get("content-type", "").partition(";")[0]
            if body and media_type.strip().lower() != "application/json":
                raise Refusal(415, "Content-Type: expected application/json", "not_json")
            return await self.run(lambda: check(_decoded(body, decoder)))

        return dependency

    def texts(self, name: str, texts: Sequence[str | Sequence[str]], pooled: bool) -> list[Sequence[str]]:
        """The tokens of a list of texts; `Refusal` for texts beyond the limits, and for empty texts to be pooled."""
        if len(texts) > self._limits.max_texts:
            raise Refusal(413, f"{name}: expected at most {self._limits.max_texts:,} texts, got {len(texts):,}",
                          "too_many_texts", name)
        tokenized = [self.tokens(f"{name}[{number}]", text) for number, text in enumerate(texts)]
        if pooled and not all(tokenized):
            number = next(number for number, tokens in enumerate(tokenized) if not tokens)
            raise Refusal(422, f"{name}[{number}]: expected at least one token to pool, got none", "no_tokens", name)
        return tokenized

    def tokens(self, name: str, text: str | Sequence[str]) -> Sequence[str]:
        """The tokens of a text; `Refusal` for too many, or too long ones."""
        tokens, field = self._split(text) if isinstance(text, str) else text, name.partition("[")[0]
        if len(tokens) > self._limits.max_tokens:
            raise Refusal(413, f"{name}: expected at most {self._limits.max_tokens:,} tokens, got {len(tokens):,}",
                          "too_many_tokens", field)
        if max(map(len, tokens), default=0) > self._limits.max_letters:
            raise Refusal(413, f"{name}: expected at most {self._limits.max_letters:,} characters in a token",
                          "token_too_long", field)
        return tokens


def _given_key(authorization: str) -> bytes:
    """Return the token of `Bearer`, or the password of `Basic`, which browsers ask their users for."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value).partition(b":")[2]
    return value.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _decoded(content: bytes, decoder: msgspec.json.Decoder) -> Any:
    """Decode a body; `Refusal` names the first wrong field or element."""
    try:
        return decoder.decode(content or b"null")
    except msgspec.ValidationError as error:
        raise _refusal(str(error), decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is not JSON, or has a lone surrogate: {error}", "malformed_json") from error


def _refusal(message: str, kind: type[msgspec.Struct]) -> Refusal:
    """Make a refusal from a message of msgspec, such as "Expected `str`, got `int` - at `$.texts[0]`"."""
    match = _place(message)
    if match is None:
        return Refusal(422, f"the body: expected a JSON object; {message}", "invalid_body")
    place, reason = (match["place"] or match["field"])[:_MAX_CHARACTERS], (match["reason"] or message)[:_MAX_CHARACTERS]
    name = place.partition("[")[0]
    if reason.startswith("Invalid enum value"):
        reason += f", expected one of {', '.join(_choices(get_type_hints(kind)[name]))}"
    return Refusal(422, f"{place}: {reason}", "invalid_value", name)


def _choices(hint: Any) -> list[str]:
    """The words of a type that is a `Literal`, or a union with one."""
    literals = [member for member in (hint, *get_args(hint)) if get_origin(member) is Literal]
    return [word for literal in literals for word in get_args(literal)]
