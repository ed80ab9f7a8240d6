"""A model that fails in the middle of an answer, or is silent for long: each stream says so."""

from __future__ import annotations

import json
from http.client import HTTPConnection

import pytest
from rdrr.serve import texts
from rdrr.serve.jobs import Event, Job
from rdrr_format.errors import DeviceError
from support.serving import Running, ScriptedWorker, scripted, serving

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "small-llama", "messages": MESSAGES, "max_tokens": 9}
ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hello"},
    "/v1/messages": CHAT,
    "/v1/responses": {"model": "small-llama", "input": "Hello"},
    "/api/chat": CHAT,
    "/infill": {"input_prefix": "a"},
}
WORDS = "the device is lost"


@pytest.fixture
def failing(worker, monkeypatch):
    from rdrr.serve import infill
    from rdrr.serve.infill import Marks

    monkeypatch.setattr(infill, "MARKS", (Marks("<|im_start|>", "<|im_end|>"),))
    with scripted(worker.model, *["some text"] * 2) as (url, script):
        script.last = Event(error=DeviceError(WORDS))
        yield Running(int(url.rpartition(":")[2]), script)


def told(path: str, lines: list[str]) -> str:
    """Return the message of the error that a stream ends with."""
    values = [json.loads(line.removeprefix("data: ")) for line in lines if line[:6] != "event:"]
    last = values[-1]
    if path == "/v1/responses":
        assert last["type"] == "response.failed"
        return last["response"]["error"]["message"]
    if path == "/api/chat":
        return last["error"]
    if path == "/v1/messages":
        assert last["type"] == "error"
    return last["error"]["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_an_answer_that_fails_is_an_error_whole_and_streamed(failing, path):
    asked = ROUTES[path]
    status, answer = failing.ask("POST", path, json.dumps(asked | {"stream": True}).encode())
    lines = [line for line in answer.decode().splitlines() if line]
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert lines.pop() == "data: [DONE]"
    assert (status, WORDS in told(path, lines)) == (200, True)
    assert any("some text"[:3] in line for line in lines)
    status, answer = failing.ask("POST", path, json.dumps(asked | {"stream": False}).encode())
    assert (status >= 500, WORDS in answer.decode()) == (True, True)


class SilentWorker(ScriptedWorker):
    """A worker whose jobs get their events from the test."""

    def submit(self, *jobs: Job) -> None:
        self.asked += jobs


@pytest.mark.parametrize(("seconds", "comments"), [(0.02, True), (600.0, False)])
def test_a_stream_without_news_gets_comments_that_keep_it_open(
    worker, monkeypatch, seconds, comments
):
    monkeypatch.setattr(texts, "KEEP_ALIVE_SECONDS", seconds)
    script = SilentWorker(worker.model)
    with serving(script) as server:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=300)
        asked = {"prompt": "Hello", "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(asked))
        response = connection.getresponse()
        if comments:
            assert [response.readline() for _ in range(4)] == [b": waiting\n", b"\n"] * 2
        (job,) = script.asked
        for event in (Event("some text", [1]), Event(ids=[2], finish="stop")):
            job.loop.call_soon_threadsafe(job.deliver, event)
        rest = response.read()
        connection.close()
    assert b"some text" in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert comments or b": waiting" not in rest
