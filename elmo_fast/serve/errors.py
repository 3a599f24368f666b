"""Turns errors into answers, all in OpenAI's JSON shape, so that its clients show the reason."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from elmo_fast.serve.batching import Draining, QueueFull, TimedOut, TooLarge

CLIENT_GONE = 499  # as in nginx; appears in the metrics only, since nobody reads the answer
_MAX_REASONS = 3  # shown for a body with many errors
_MAX_NAME_CHARACTERS = 80  # shown of a field's name, which the client may have made up


class ErrorDetail(BaseModel):
    """`param` names the field, `code` the kind of error."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """The body of every answer from 400 on."""

    error: ErrorDetail


class Refusal(Exception):
    """An answer from 400 on."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None,
                 headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.param, self.headers = status, param, dict(headers or {})
        self.code = code or _phrase(status).lower().replace(" ", "_")

    def response(self) -> JSONResponse:
        name = ("rate_limit_error" if self.status == HTTPStatus.TOO_MANY_REQUESTS else
                "server_error" if self.status >= 500 else "invalid_request_error")
        detail = ErrorDetail(message=str(self), type=name, param=self.param, code=self.code)
        return JSONResponse(ErrorAnswer(error=detail).model_dump(), self.status, self.headers)


def refusal_of(error: Exception) -> Refusal:
    """Return the answer to an error of the queue, the engine or the framework."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, QueueFull):
        return Refusal(429, str(error), "queue_full", headers={"Retry-After": str(error.retry_after)})
    if isinstance(error, Draining):
        return Refusal(503, str(error), "draining",
                       headers={"Retry-After": str(error.retry_after), "Connection": "close"})
    if isinstance(error, TooLarge):
        return Refusal(413, str(error), "too_many_tokens")
    if isinstance(error, TimedOut):
        return Refusal(504, str(error), "timeout", headers={"x-should-retry": "false"})
    if isinstance(error, RequestValidationError):
        return _body_refusal(error)
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, ValueError):
        return Refusal(422, str(error), "invalid_value")
    return Refusal(500, f"{type(error).__name__}: {error}", "engine_error")


def install(app: FastAPI) -> None:
    """Make the app answer every error in the same JSON shape."""
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return refusal_of(error).response()

    for cls in (Refusal, QueueFull, Draining, TooLarge, TimedOut, RequestValidationError, HTTPException, ValueError,
                Exception):
        app.add_exception_handler(cls, answer)


def _body_refusal(error: RequestValidationError) -> Refusal:
    if isinstance(error.body, bytes):
        return Refusal(415, "Content-Type: expected application/json", "not_json")
    reasons: Sequence[Any] = error.errors()
    if reasons[0]["type"] == "json_invalid":
        return Refusal(400, f"the body is not JSON: {reasons[0]['ctx']['error']} at character {reasons[0]['loc'][-1]}",
                       "malformed_json")
    if error.body is None or reasons[0]["loc"] == ("body",):
        return Refusal(422, f"the body: expected a JSON object; {reasons[0]['msg']}", "invalid_body")
    lines = list(dict.fromkeys(f"{_place(reason['loc'])}: {reason['msg']}" for reason in reasons))
    more = f"; and {len(lines) - _MAX_REASONS} more" if len(lines) > _MAX_REASONS else ""
    return Refusal(422, "; ".join(lines[:_MAX_REASONS]) + more, "invalid_value", _place(reasons[0]["loc"][:2]))


def _place(location: Sequence[str | int]) -> str:
    """Format a location: ("body", "texts", 3, "list[str]", 0) -> texts[3][0], without pydantic's names of types."""
    _, name, *rest = location
    shown = str(name)[:_MAX_NAME_CHARACTERS].encode(errors="backslashreplace").decode()
    return shown + "".join(f"[{part}]" for part in rest if isinstance(part, int))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "client gone"
