"""A server that runs in this process, and plain requests to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import uvicorn
from rdrr.serve.app import application
from rdrr.serve.guards import hosts_of
from rdrr.serve.metrics import Metrics
from rdrr.serve.texts import Service
from rdrr.serve.worker import Worker


@dataclass
class Running:
    """A server that runs in a thread.

    Attributes:
        port: Where it listens.
        worker: Its worker.
    """

    port: int
    worker: Worker

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def serving(worker: Worker, **guards: Any) -> Iterator[Running]:
    """Run a server for a block; the worker has been started."""
    service = Service(worker, "small-llama", ("alias",), Metrics(), 1_800_000_000)
    app = application(service, hosts=hosts_of("127.0.0.1"), **guards)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
            assert thread.is_alive(), "the server has ended"
        (listener,) = server.servers
        yield Running(listener.sockets[0].getsockname()[1], worker)
    finally:
        server.should_exit = True
        thread.join()
