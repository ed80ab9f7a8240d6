"""The page for people at `/`: the browser runtime's, with this server as its engine.

Only the files that the build wrote are served, by their names: no path of a request is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "index.html": "text/html",
        "page.css": "text/css",
        "page.js": "text/javascript",
        "rdrr.js": "text/javascript",
        "service-worker.js": "text/javascript",
        "worker.js": "text/javascript",
    }
)

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What the page may load and do, should a text ever become more than text."""

_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
)

PATHS = frozenset({"/", *(f"/{name}" for name in _TYPES)})
"""Paths of the page, which need no key: it asks people for it."""


def page_routes() -> list[Route]:
    """Return the routes of the page; none for a file that was not built."""
    folder = files("rdrr") / "browser"
    contents = {name: (folder / name).read_bytes() for name in _TYPES if (folder / name).is_file()}
    named = {f"/{name}": name for name in contents}
    if "index.html" in contents:
        named["/"] = "index.html"
    return [_route(path, contents[name], _TYPES[name]) for path, name in named.items()]


def _route(path: str, content: bytes, media_type: str) -> Route:
    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type, headers=dict(_HEADERS))

    return Route(path, answer)
