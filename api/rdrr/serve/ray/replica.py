"""A server in a process of its own, which is called with requests that have been read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from rdrr_format.errors import DeviceError

from rdrr._load_options import LoadOptions
from rdrr.serve.app import application
from rdrr.serve.packages import ServeOptions, pool_of_packages


@dataclass(frozen=True)
class ReadRequest:
    """A request, read whole.

    Attributes:
        method: Its method.
        path: Its path, as it was sent.
        query: What follows the question mark.
        headers: Names and values of its headers.
        body: Its body.
    """

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def scope(self) -> dict[str, Any]:
        """The request as ASGI describes it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote(self.path),
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": self.headers,
            "client": None,
            "server": None,
        }


@dataclass(frozen=True, kw_only=True)
class Served:
    """What every replica serves, and to whom.

    Attributes:
        packages: The packages.
        load: How they are loaded, by the names of `LoadOptions`.
        options: How they are served.
        key: What a client must know; None for no key.
        origins: Origins of pages that may send requests and read answers.
    """

    packages: tuple[str, ...]
    load: Mapping[str, Any]
    options: ServeOptions
    key: str | None = None
    origins: tuple[str, ...] = ()


class Replica:
    """A server without sockets.

    Args:
        served: What it serves.
        name: Its name, which stands in the ids of the responses that it keeps.

    Raises:
        RdrrError: The first package cannot be loaded.
    """

    def __init__(self, served: Served, name: str) -> None:
        self._pool = pool_of_packages(served.packages, LoadOptions(**served.load), served.options)
        self._pool.load(self._pool.offers[0])
        self._app = application(self._pool, key=served.key, origins=served.origins, replica=name)

    async def answer(self, request: ReadRequest) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of an answer, as ASGI has them; the texts end if nobody reads on."""
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        parts = [{"type": "http.request", "body": request.body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        running = asyncio.create_task(self._app(request.scope, receive, messages.put))
        running.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            gone.set()
            with suppress(Exception):  # the application has answered it already
                await running

    def check(self) -> None:
        """Check that the models live.

        Raises:
            DeviceError: One has failed, and was not loaded again yet.
        """
        for service in self._pool.loaded:
            if not service.worker.is_alive:
                raise DeviceError("the model has failed", found=service.worker.failure)

    def close(self) -> None:
        """Unload the packages."""
        self._pool.close()
