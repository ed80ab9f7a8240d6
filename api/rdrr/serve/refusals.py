"""The answers to errors, in the form of the interface that was called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError
from rdrr_format.errors import DeviceError, RdrrError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rdrr.serve.guards import error_response, in_form_of, too_large
from rdrr.serve.lanes import TOO_LATE
from rdrr.serve.pool import UNKNOWN_MODEL
from rdrr.serve.texts import is_too_long
from rdrr.serve.worker import BusyError

RETRY_SECONDS = "2"


class TooLargeError(Exception):
    """The body of a request is too large."""


Handler = Callable[[Request, Exception], Awaitable[Response]]


def exception_handlers() -> dict[type[Exception], Handler]:
    """Return what answers each kind of error."""
    return {kind: _handled(answer) for kind, answer in _FAULTS.items()}


def _http_error(error: HTTPException) -> JSONResponse:
    response = error_response(error.status_code, str(error.detail), "invalid_request_error")
    response.headers.update(error.headers or {})
    return response


def _refusal(error: RdrrError) -> JSONResponse:
    if isinstance(error, DeviceError):
        return error_response(503, str(error), "server_error", retry_after=RETRY_SECONDS)
    if error.message == UNKNOWN_MODEL:
        return error_response(404, str(error), "invalid_request_error", "model_not_found")
    if error.message == TOO_LATE:
        headers = {"x_should_retry": "false"}
        return error_response(408, str(error), "timeout_error", "deadline_exceeded", **headers)
    code = "context_length_exceeded" if is_too_long(error) else None
    return error_response(400, str(error), "invalid_request_error", code)


def _invalid(error: ValidationError) -> JSONResponse:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = [str(part) for part in problem["loc"] if part != "parameters"]
    message = ": ".join([*filter(None, [".".join(path)]), problem["msg"].removeprefix(_OURS)])
    return error_response(400, message, "invalid_request_error", param=next(iter(path), None))


_OURS = "Value error, "
"""What pydantic puts before a message that is not its own."""


def _busy(_: BusyError) -> JSONResponse:
    message = "too many requests wait for the model"
    return error_response(429, message, "rate_limit_error", retry_after=RETRY_SECONDS)


_FAULTS: Mapping[type[Exception], Callable[[Any], JSONResponse]] = {
    HTTPException: _http_error,
    RdrrError: _refusal,
    ValidationError: _invalid,
    BusyError: _busy,
    TooLargeError: lambda _: too_large(),
    Exception: lambda _: error_response(500, "the server has failed", "server_error"),
}
"""The answers as OpenAI's API has them."""


def _handled(answer: Callable[[Any], JSONResponse]) -> Handler:
    async def handler(request: Request, error: Exception) -> Response:
        return in_form_of(request.url.path, answer(error))

    return handler
