"""The answers to errors, in the form of the interface that was called."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rdrr_format.errors import DeviceError, RdrrError, UsageError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from rdrr.serve.guards import error_response, in_form_of, too_large
from rdrr.serve.lanes import TOO_LATE
from rdrr.serve.pool import NEVER_FITS, UNKNOWN_MODEL
from rdrr.serve.texts import is_too_long
from rdrr.serve.worker import BusyError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

RETRY_SECONDS = "2"

_ALIKE = 0.8
"""How alike two paths are where one lacks `/v1`, as that of an address without it does."""


class TooLargeError(Exception):
    """The body of a request is too large."""


Handler = Callable[[Request, Exception], Awaitable[Response]]


def exception_handlers() -> dict[type[Exception], Handler]:
    """Return what answers each kind of error."""
    answered: dict[type[Exception], Any] = {
        kind: _handled(answer) for kind, answer in _FAULTS.items()
    }
    return {**answered, HTTPException: _no_route}


async def _no_route(request: Request, error: HTTPException) -> Response:
    method, path, headers = request.method, request.url.path, error.headers or {}
    routes = [route.path for route in request.app.routes]
    (near,) = get_close_matches(path[:64], routes, 1, _ALIKE) or (None,)
    refusal = UsageError(
        "there is no such route", where=path, hint=near and f"did you mean {near}?"
    )
    if allowed := headers.get("Allow"):
        refusal = UsageError(
            "the route has other methods", where=path, expected=allowed, found=method
        )
    response = error_response(error.status_code, str(refusal), "invalid_request_error", **headers)
    return in_form_of(path, response)


def _refusal(error: RdrrError) -> JSONResponse:
    if error.message == NEVER_FITS:
        # Clients send a request again after any status of 500 and above.
        return error_response(400, str(error), "invalid_request_error", "model_too_large")
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
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    field = _path(problems[0])[:1]
    problems = [problem for problem in problems if _path(problem)[:1] == field]
    # Of the types that a field may have, the one that the value has says what is wrong with it.
    problems = [problem for problem in problems if not _has_other_type(problem)][:1] or problems
    path = _path(problems[0])
    messages = dict.fromkeys(problem["msg"].removeprefix(_OURS) for problem in problems)
    message = ": ".join([*filter(None, [".".join(path)]), " or ".join(messages)])
    return error_response(400, message, "invalid_request_error", param=next(iter(path), None))


def _path(problem: ErrorDetails) -> list[str]:
    """Return the place in the request, without pydantic's names of a field's types."""
    parts = [str(part) for part in problem["loc"] if part != "parameters"]
    return [part for part in parts if not _TYPE.match(part)]


def _has_other_type(problem: ErrorDetails) -> bool:
    """Return whether a value has another type than one of those that its field may have."""
    is_choice = any(_TYPE.match(str(part)) for part in problem["loc"][-1:])
    return is_choice and problem["type"].endswith(("_type", "_parsing"))


_TYPE = re.compile(r"(str|int|float|bool)$|(list|dict)\[")
"""What pydantic calls the types of a field that may have several."""

_OURS = "Value error, "
"""What pydantic puts before a message that is not its own."""


def _busy(error: BusyError) -> JSONResponse:
    return error_response(429, str(error), "rate_limit_error", retry_after=RETRY_SECONDS)


_FAULTS: Mapping[type[Exception], Callable[[Any], JSONResponse]] = {
    RdrrError: _refusal,
    ValidationError: _invalid,
    BusyError: _busy,
    TooLargeError: lambda _: too_large(),
    # The client has gone in the middle of its body, so nobody reads this answer.
    ClientDisconnect: lambda _: error_response(499, "no whole request", "invalid_request_error"),
    Exception: lambda _: error_response(500, "the server has failed", "server_error"),
}
"""The answers as OpenAI's API has them."""


def _handled(answer: Callable[[Any], JSONResponse]) -> Handler:
    async def handler(request: Request, error: Exception) -> Response:
        return in_form_of(request.url.path, answer(error))

    return handler
