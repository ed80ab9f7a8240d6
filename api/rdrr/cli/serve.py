"""`rdrr serve`: packages behind the HTTP interfaces that programs expect."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
from rdrr_format.extras import import_extra

from rdrr._load_options import LoadOptions
from rdrr.cli._console import announce, note
from rdrr.cli._flags import with_flags
from rdrr.cli._options import PackagePaths
from rdrr.cli._progress import status

SWITCH_SECONDS = 0.0005
"""How long Python lets the thread of the sockets run while the thread of the model waits; the usual
5 ms are as long as five passes of a small model on a GPU."""

PATIENCE = 30
"""Seconds that running texts have to end when the server is stopped."""


@with_flags
def serve(
    path: PackagePaths,
    *,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at.")] = 8080,
    slots: Annotated[
        int, typer.Option(min=1, max=32, help="Texts that share passes; the others wait.")
    ] = 4,
    queue: Annotated[int, typer.Option(min=0, help="Texts that may wait; more are refused.")] = 64,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name of the model (repeatable)."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the key that clients must send."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin of pages that may send requests (repeatable)."),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Chat template in place of the package's, or its name."),
    ] = None,
    idle_unload: Annotated[
        float | None,
        typer.Option(
            min=1, help="Seconds after which an unused package is unloaded; never by default."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Most seconds of a request; no limit by default.")
    ] = None,
    allow_remote_images: Annotated[
        bool,
        typer.Option(
            "--allow-remote-images",
            help="Fetch images that requests name by a URL, from public addresses only.",
        ),
    ] = False,
    load: LoadOptions,
) -> int:
    """Serve packages over HTTP, as OpenAI's, Anthropic's and Ollama's APIs.

    Requests share passes, so clients are served together. The first package is loaded at once,
    others when a request names them; --max-vram holds for all together, and makes room by unloading
    the one used longest ago. Without --host only this machine is served. SIGTERM and Ctrl-C let
    the running texts end.
    """
    import_extra("starlette", "serve", "`rdrr serve`")
    uvicorn = import_extra("uvicorn", "serve", "`rdrr serve`")
    import_extra("prometheus_client", "serve", "`rdrr serve`")
    from rdrr.serve.app import application
    from rdrr.serve.guards import hosts_of
    from rdrr.serve.packages import ServeOptions, key_in, pool_of_packages

    key = None if api_key_file is None else key_in(api_key_file)
    sys.setswitchinterval(SWITCH_SECONDS)
    options = ServeOptions(
        slots=slots,
        queue=queue,
        aliases=tuple(alias or ()),
        template=template,
        timeout=timeout,
        idle_unload=idle_unload,
        allow_remote_images=allow_remote_images,
    )
    pool = pool_of_packages(path, load, options)
    with status("loading the model"):
        service = pool.load(pool.offers[0])
    announce(service.model)
    package = service.model.package
    app = application(pool, key=key, hosts=hosts_of(host), origins=cors or (), package=package)
    config = uvicorn.Config(
        app, log_level="warning", lifespan="off", timeout_graceful_shutdown=PATIENCE
    )
    logging.getLogger("uvicorn.error").addFilter(_is_fault)
    try:
        with _listening(host, port) as listener:
            names = " and ".join(dict.fromkeys(offer.name for offer in pool.offers))
            verb = "is" if len(pool.offers) == 1 else "are"
            note(f"{names} {verb} served at http://{_address(listener)}/v1")
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        pool.close(1)
    return 0


def _is_fault(record: logging.LogRecord) -> bool:
    """Return whether a record is more than the traceback of what a second Ctrl-C has cancelled."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def _address(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
