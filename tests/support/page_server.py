"""A stand-in for `rdrr serve`: the page's files, and answers that a test scripts.

The last message of a user says what the answer is: `slow` comes until the client is gone, `die`
ends in mid-stream, `script` is text that looks like HTML, and all else is said again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rdrr.serve.page import page_routes
from starlette.applications import Starlette
from starlette.testclient import TestClient

MODEL = "scripted-model"
SCRIPT = '<script>document.title = "owned"</script> & <b>bold</b>'
FENCED = "Here it is:\n\n```python\nprint('<i>')\n```\n\nDone, **really**."
ANSWERS = {"script": SCRIPT, "code": FENCED}


class PageServer(ThreadingHTTPServer):
    """The server.

    Attributes:
        requests: The bodies of all requests for text.
        gone: Set when a client has gone in the middle of an answer.
        chats: Whether the model has a chat template.
        sees: Whether messages may have images.
        models: Names of the models.
        extra: Contents of further files by their paths.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.gone = threading.Event()
        self.chats = True
        self.sees = False
        self.models = [MODEL]
        self.extra: dict[str, bytes] = {}
        self.files = TestClient(Starlette(routes=page_routes()))

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_address[1]}/"


@contextmanager
def page_server() -> Iterator[PageServer]:
    """Run a server for a block."""
    server = PageServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        known = {
            "/v1/models": {"data": [{"id": name} for name in self.server.models]},
            "/props": {
                "models": [
                    {
                        "model": name,
                        "adapter": "a card",
                        "context": 4096 + at,
                        "modalities": {"vision": self.server.sees},
                    }
                    for at, name in enumerate(self.server.models)
                ]
            },
        }
        if self.path in known:
            self._send(200, json.dumps(known[self.path]).encode(), {})
            return
        if self.path in self.server.extra:
            self._send(200, self.server.extra[self.path], {})
            return
        answer = self.server.files.get(self.path)
        headers = {
            name: answer.headers[name] for name in answer.headers if name != "content-length"
        }
        self._send(answer.status_code, answer.content, headers)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/apply-template":
            status, answer = (200, {}) if self.server.chats else (400, {"error": {"message": "no"}})
            self._send(status, json.dumps(answer).encode(), {})
            return
        self.server.requests.append(body)
        if body["model"] not in self.server.models:
            self._send(404, b"{}", {})
            return
        asked = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        asked = asked if isinstance(asked, str) else asked[-1]["text"]
        if asked == "refuse":
            fault = {"error": {"message": "the prompt has 5,120 tokens, 4,096 fit"}}
            self._send(400, json.dumps(fault).encode(), {})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            self._stream(asked, chat="messages" in body)
        except OSError:
            self.server.gone.set()

    def _stream(self, asked: str, *, chat: bool) -> None:
        tokens = 0
        for piece in self._pieces(asked):
            tokens += 1
            part = {"delta": {"content": piece}} if chat else {"text": piece}
            self._event({"choices": [{"index": 0, **part}]})
        if asked == "die":
            return
        usage = {"prompt_tokens": 20, "completion_tokens": tokens}
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _pieces(self, asked: str) -> Iterator[str]:
        if asked == "slow":
            while True:
                yield "again "
                time.sleep(0.02)
        answer = ANSWERS.get(asked, f"You said: {asked}")
        for begin in range(0, len(answer), 4):
            yield answer[begin : begin + 4]

    def _event(self, value: object) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        with suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        pass
