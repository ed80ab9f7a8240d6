"""The served package for the page's other engine: what `rdrr web` wrote beside it, and its files.

Only files that the index and the manifest name are served. With a key, they need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.bounded_json import JsonBounds, parse_json
from rdrr_format.errors import RdrrError
from rdrr_format.stores import LocalStore, read_bounded
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

FOLDER = "/package"
"""Where the package is; the page looks for its index there."""

_BOUNDS = JsonBounds(size=4 << 20, values=1 << 16)


def package_routes(package: Package | None) -> list[Route]:
    """Return the routes of a package's files; none if browsers cannot run it from here.

    Args:
        package: The package that is served.
    """
    if package is None or not isinstance(package.store, LocalStore):
        return []
    web = LocalStore(package.store.root / "web")
    try:
        index = parse_json(read_bounded(web, "index.json", _BOUNDS.size), _BOUNDS)
        if index["package"] != "../":
            return []
        files = dict(_files(package, package.store, web, index))
    except (RdrrError, AttributeError, TypeError, LookupError):
        return []  # none, that of another program, or one that leads elsewhere
    return [_route(f"{FOLDER}/{name}", path) for name, path in files.items()]


def _files(
    package: Package, store: LocalStore, web: LocalStore, index: Mapping[str, Any]
) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of the files; a store refuses names with folders."""
    shards = (shard.filename for shard in package.manifest.shards)
    for name in ("manifest.json", *index["text"].values(), *shards):
        yield name, store.readable(name)
    yield "web/index.json", web.readable("index.json")
    programs = LocalStore(web.root / "programs")
    for program in index["programs"]:
        name = program["file"].removeprefix("programs/")
        yield f"web/programs/{name}", programs.readable(name)


def _route(url: str, path: Path) -> Route:
    async def answer(_: Request) -> Response:
        headers = {"x-content-type-options": "nosniff", "cache-control": "no-cache"}
        return FileResponse(path, media_type="application/octet-stream", headers=headers)

    return Route(url, answer)
