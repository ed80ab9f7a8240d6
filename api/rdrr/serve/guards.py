"""What stands before the routes: keys, hosts and sizes, checked before a request is read."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse

from rdrr.serve.page import PATHS

App = Any
MOST_BYTES = 4 << 20
"""Most bytes of the body of a request."""

OPEN = frozenset({"/health", *PATHS})
"""Routes that need no key."""

_FIELD = re.compile(r"`(\w+)`")


def error_response(
    status: int,
    message: str,
    kind: str,
    code: str | None = None,
    param: str | None = None,
    **headers: str,
) -> JSONResponse:
    """Return an error as OpenAI's API has it.

    A message that begins with the name of a field, in backticks, is about that one.
    """
    if param is None and (named := _FIELD.match(message)):
        param = named[1]
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(
        body, status, {name.replace("_", "-"): value for name, value in headers.items()}
    )


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}


_KEPT = ("allow", "retry-after", "x-should-retry")
"""The headers of an error that belong to every interface."""


def in_form_of(path: str, response: JSONResponse) -> JSONResponse:
    """Return an error in the form of the interface that a path belongs to."""
    error = json.loads(bytes(response.body))["error"]
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC.get(response.status_code, error["type"])
        body: dict[str, Any] = {"type": "error", "error": {**error, "type": kind}}
    elif path.startswith("/api/"):
        body = {"error": error["message"]}
    else:
        return response
    headers = {name: response.headers[name] for name in _KEPT if name in response.headers}
    return JSONResponse(body, response.status_code, headers)


_READS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""

_ELSEWHERE = ("cross-site", "same-site")
"""What a browser says of a request whose page has another origin than the server."""

_BEARER = re.compile("^bearer +", re.IGNORECASE)


class Guards:
    """Refuses requests that no route should see.

    A page of another origin could not read an answer, but could let the server generate, or unload
    a package. Browsers say where a request comes from, and other programs say nothing.

    Args:
        app: The routes.
        key: What a client must know; None for no key.
        hosts: Names that the header `Host` may have; None for any. A page elsewhere whose name
            leads to this machine could read answers otherwise.
        origins: Origins of pages that may send requests; `*` for all.
    """

    def __init__(
        self,
        app: App,
        *,
        key: str | None,
        hosts: Collection[str] | None,
        origins: Iterable[str] = (),
    ) -> None:
        self._app, self._key, self._hosts = app, key, hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], scope["path"], headers)
        if refusal is not None:
            await in_form_of(scope["path"], refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host")  # HTTP/1.0 has none, and no browser speaks that
        if self._hosts is not None and host is not None and _name(host) not in self._hosts:
            return error_response(403, "this host is not served", "invalid_request_error")
        if method not in _READS and self._is_foreign(headers):
            return error_response(
                403,
                "pages of this origin may not send requests; `--cors ORIGIN` lets them",
                "invalid_request_error",
            )
        if self._key is not None and path not in OPEN and not self._knows_key(headers):
            return error_response(
                401, "the key is missing or wrong", "invalid_request_error", "invalid_api_key"
            )
        if headers.get("content-encoding", "identity").lower() != "identity":
            return error_response(415, "send the body without compression", "invalid_request_error")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            return too_large()
        return None

    def _is_foreign(self, headers: Headers) -> bool:
        """Return whether a request is that of a page which may not read answers."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site is None:  # browsers say it to no server that is beyond loopback without https
            host = headers.get("host")
            is_elsewhere = origin is not None and origin.partition("://")[2] != host
        else:
            is_elsewhere = site in _ELSEWHERE
        return is_elsewhere and self._origins.isdisjoint(("*", origin))

    def _knows_key(self, headers: Headers) -> bool:
        stated = headers.get("x-api-key") or _BEARER.sub("", headers.get("authorization", ""))
        assert self._key is not None
        return hmac.compare_digest(stated.encode("latin-1"), self._key.encode())


def _name(host: str) -> str:
    """Return the name in a header `Host`, without its port and in small letters."""
    host = host.lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host


def hosts_of(address: str) -> frozenset[str] | None:
    """Return the hosts that a server may be called by; None for any beyond loopback."""
    loopback = frozenset({"localhost", "127.0.0.1", "[::1]"})
    if address == "localhost":
        return loopback
    try:
        return loopback if ip_address(address).is_loopback else None
    except ValueError:
        return None


def too_large() -> JSONResponse:
    """Return the answer to a body of too many bytes."""
    return error_response(
        413, f"the request is larger than {MOST_BYTES:,} bytes", "invalid_request_error"
    )


async def body_of(request: Request) -> bytes | None:
    """Return the body of a request; None if it is too large, however it is sent."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            return None
    return bytes(body)
