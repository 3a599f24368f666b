"""Reads and checks JSON bodies of requests in a thread beside the event loop, up to the first error.

The reader is written in Python and reads value by value, so that the event loop can run in between; `json.loads`
would block it from the first byte to the last.
"""

import asyncio
import collections
import email.message
import functools
import json
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from elmo_fast.environment import extra
from elmo_fast.serve.limits import Limits

with extra("serve"):
    from fastapi import HTTPException, Request
    from fastapi.exceptions import RequestValidationError
    from pydantic import BaseModel, ValidationError

LIMITS = "elmo_fast.limits"  # in the scope of a request
_MAX_DEPTH, _MAX_KEYS = 8, 64  # levels of nested lists and objects, and keys of an object
_MAX_OTHER_VALUES = 64  # values of a request besides its texts
_space = re.compile(r"[ \t\n\r]*").match
_scalar = json.JSONDecoder().raw_decode


class BodyReader:
    """Reads bodies one after the other, so that many large bodies do not starve the event loop."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1, "elmo-fast bodies")

    def of(self, model: type[BaseModel], then: Callable[[Any], Any] | None = None) -> Callable[..., Awaitable[Any]]:
        """Make a dependency of a route: it returns the body as a `model`, or `then(body)`, called in the thread too."""
        async def dependency(request: Request) -> Any:
            body, limits = await request.body(), request.scope.get(LIMITS) or Limits()
            if body:
                _check_content_type(request.headers.get("content-type", ""), body)
            maxima = limits.queue_tokens + _MAX_OTHER_VALUES, limits.max_texts + _MAX_OTHER_VALUES
            read = functools.partial(_read, body, model, maxima, then)
            return await asyncio.get_running_loop().run_in_executor(self._thread, read)

        return dependency


def described(model: type[BaseModel]) -> dict[str, Any]:
    """Return route arguments that show the body in the API's description, as a parameter of that type would."""
    return {"openapi_extra": {"requestBody": {
        "required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}}


def _check_content_type(content_type: str, body: bytes) -> None:
    """Raise FastAPI's error, with the bytes as its body, unless the content type is JSON."""
    message = email.message.Message()
    message["content-type"] = content_type
    main, subtype = (message.get_content_maintype(), message.get_content_subtype()) if content_type else ("", "")
    if main != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise RequestValidationError([{"type": "model_attributes_type", "loc": ("body",), "input": None,
                                       "msg": "Input should be a valid dictionary"}], body=body)


def _read(content: bytes, model: type[BaseModel], maxima: tuple[int, int], then: Callable[[Any], Any] | None) -> Any:
    value = read_json(content, *maxima) if content else None
    try:
        body = model.model_validate(value)
    except ValidationError as error:
        reasons = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**reason, "loc": ("body", *reason["loc"])} for reason in reasons],
                                     body=value) from error
    return body if then is None else then(body)


def read_json(content: bytes, most_values: int, most_lists: int) -> Any:
    """Read the value in a body; `RequestValidationError` or `HTTPException` if it is not JSON or is too large.

    Lists have a limit of their own: many thousands of them start garbage collection over all objects of the process.
    """
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        value, end = _Reader(most_values, most_lists).value(text, _space(text).end())
        if (end := _space(text, end).end()) != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except json.JSONDecodeError as error:
        raise RequestValidationError([{"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error",
                                       "input": {}, "ctx": {"error": error.msg}}], body=error.msg) from error
    except ValueError as error:
        raise HTTPException(400, f"There was an error parsing the body ({error!s:.100})") from error
    return value


class _Reader:
    """Reads values of a JSON text, within limits, with the pure-Python functions of `json` for lists and objects."""

    def __init__(self, most_values: int, most_lists: int):
        self._left, self._lists_left, self._depth = most_values, most_lists, 0

    def value(self, text: str, begin: int) -> tuple[Any, int]:
        """Return the value that begins at a position, and the position of its end."""
        first = text[begin : begin + 1]
        is_list = first == "[" or first == "{"
        self._left, self._lists_left = self._left - 1, self._lists_left - is_list
        if self._left < 0 or self._lists_left < 0:
            raise HTTPException(413, "the body: expected no more values, or lists, than a request can have")
        if not is_list:
            return _scalar(text, begin)
        if self._depth == _MAX_DEPTH:
            raise ValueError(f"expected at most {_MAX_DEPTH} lists and objects in each other, got more")
        self._depth += 1
        if first == "[":
            result = json.decoder.JSONArray((text, begin + 1), self.value)
        else:
            result = json.decoder.JSONObject((text, begin + 1), True, self.value, None, _object)
        self._depth -= 1
        return result


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object from (key, value) pairs. `RequestValidationError` for too many keys and for repeated ones."""
    values = dict(pairs)
    if len(values) < len(pairs):
        key, why = collections.Counter(key for key, _ in pairs).most_common(1)[0][0], "Key given twice"
    elif len(pairs) > _MAX_KEYS:
        key, why = pairs[_MAX_KEYS][0], f"Expected at most {_MAX_KEYS} keys"
    else:
        return values
    raise RequestValidationError([{"type": "value_error", "loc": ("body", key), "msg": why}], body=why)
