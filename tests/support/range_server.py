"""A web server that honours range requests, which the standard library's does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
def served(folder: Path) -> Iterator[str]:
    """Serve a folder with range requests; yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
