"""Web servers in this process, one of which honours range requests, unlike that of Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class QuietHandler(SimpleHTTPRequestHandler):
    """A file server that writes no log."""

    def log_message(self, *arguments: Any) -> None:
        pass


class RangeHandler(QuietHandler):
    """A file server that honours range requests."""

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            super().do_GET()
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        content = Path(self.translate_path(self.path)).read_bytes()
        part = content[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


@contextmanager
def running(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a web server whose requests a handler answers; yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def served(
    folder: Path, handler: Callable[..., SimpleHTTPRequestHandler] = RangeHandler
) -> AbstractContextManager[str]:
    """Serve a folder, with range requests unless the handler is another; give its URL."""
    return running(partial(handler, directory=str(folder)))
