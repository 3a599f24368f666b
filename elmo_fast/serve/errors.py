"""Turns errors into answers, all in OpenAI's JSON shape, so that its clients show the reason."""

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException


class Refusal(HTTPException):
    """An answer from 400 on."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None,
                 headers: Mapping[str, str] | None = None):
        super().__init__(status, message, headers)
        self.code, self.param = code, param

    def response(self) -> JSONResponse:
        kind = ("rate_limit_error" if self.status_code == HTTPStatus.TOO_MANY_REQUESTS else
                "server_error" if self.status_code >= 500 else "invalid_request_error")
        detail = {"message": self.detail, "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": detail}, self.status_code, self.headers)


def draining(message: str) -> Refusal:
    """The answer of a process that shuts down."""
    return Refusal(503, message, "draining", headers={"Retry-After": "1", "Connection": "close"})


def client_gone() -> Refusal:
    """The answer to a client that has disconnected; only the metrics show it, with nginx's status 499."""
    return Refusal(499, "the client has gone", "client_gone")


def refusal_of(error: Exception) -> Refusal:
    """Return the answer to an error of the engine or the framework."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HTTPException):
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return Refusal(error.status_code, str(error.detail), code, headers=error.headers)
    if isinstance(error, ValueError):
        name = str(error).partition(":")[0]
        return Refusal(422, str(error), "invalid_value", name if name.isidentifier() else None)
    return Refusal(500, f"{type(error).__name__}: {error}", "engine_error")


def install(app: FastAPI) -> None:
    """Make the app answer every error in the same JSON shape."""
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return refusal_of(error).response()

    for cls in (HTTPException, ValueError, Exception):
        app.add_exception_handler(cls, answer)
