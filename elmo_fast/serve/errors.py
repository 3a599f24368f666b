"""Turns errors into answers, all in OpenAI's JSON shape, so that its clients show the reason."""

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from elmo_fast.serve.batching import Draining, QueueFull, TimedOut, TooLarge, Unavailable

CLIENT_GONE = 499  # as in nginx; appears in the metrics only, since nobody reads the answer


class Refusal(HTTPException):
    """An answer from 400 on."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None,
                 headers: Mapping[str, str] | None = None):
        super().__init__(status, message, headers)
        self.param = param
        self.code = code or _phrase(status).lower().replace(" ", "_")

    def response(self) -> JSONResponse:
        kind = ("rate_limit_error" if self.status_code == HTTPStatus.TOO_MANY_REQUESTS else
                "server_error" if self.status_code >= 500 else "invalid_request_error")
        detail = {"message": self.detail, "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": detail}, self.status_code, self.headers)


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
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, ValueError):
        return Refusal(422, str(error), "invalid_value")
    return Refusal(500, f"{type(error).__name__}: {error}", "engine_error")


def install(app: FastAPI) -> None:
    """Make the app answer every error in the same JSON shape."""
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return refusal_of(error).response()

    for cls in (HTTPException, Unavailable, TimedOut, ValueError, Exception):
        app.add_exception_handler(cls, answer)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "client gone"
