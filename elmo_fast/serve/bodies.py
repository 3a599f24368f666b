"""Reads and checks JSON bodies of requests in a thread beside the event loop, up to the first error."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args, get_origin, get_type_hints

from elmo_fast.environment import extra

with extra("serve"):
    import msgspec
    from fastapi import Request

    from elmo_fast.serve.errors import Refusal

_MAX_CHARACTERS = 100  # of a client's text in an error
_place = re.compile(r"(?P<reason>.*) - at `\$\.(?P<place>.*?)`|.* field `(?P<field>.*)`", re.DOTALL).fullmatch


class BodyReader:
    """Reads bodies one after the other, so that many large bodies do not starve the event loop."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1, "elmo-fast bodies")

    def of(self, kind: type[msgspec.Struct], then: Callable[[Any], Any] = lambda body: body
           ) -> Callable[[Request], Awaitable[Any]]:
        """Make a dependency of a route: it reads the body as a `kind` and calls `then` with it, both in the thread."""
        decoder = msgspec.json.Decoder(kind)

        async def dependency(request: Request) -> Any:
            body = await request.body()
            if body:
                media_type = request.headers.get("content-type", "").partition(";")[0]
                if media_type.strip().lower() != "application/json":
                    raise Refusal(415, "Content-Type: expected application/json", "not_json")
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: then(read(body, decoder)))

        return dependency


def read(content: bytes, decoder: msgspec.json.Decoder) -> Any:
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
