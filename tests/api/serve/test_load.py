"""The server under load and in trouble: it answers each request, and goes on with the next."""

from __future__ import annotations

import errno
import io
import json
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import pytest
import rdrr
from rdrr.serve import worker as worker_module
from rdrr.serve.jobs import Event, Job
from rdrr.serve.worker import Worker
from soak import sample
from support.serving import Running, ScriptedWorker, serving

ASKED = {"prompt": "And it came to pass", "max_tokens": 3, "temperature": 0}
CLIENTS, FILES = 8, 4096


def completed(connection: HTTPConnection, **more: object) -> bytes:
    connection.request("POST", "/v1/completions", json.dumps({**ASKED, **more}))
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    return answer


def is_renewed(worker: Worker, model: rdrr.Model) -> bool:
    """Wait until another model is loaded; return whether one is, after a minute at most."""
    for _ in range(1200):
        if worker.model is not model and worker.is_alive:
            return True
        threading.Event().wait(0.05)
    return False


class FullDisk(io.StringIO):
    """A log on a disk that has no room."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("log", [io.StringIO, FullDisk])
def test_a_model_that_fails_is_an_error_for_each_request_and_is_loaded_again(
    shallow_package, monkeypatch, log
):
    monkeypatch.setattr(worker_module, "RESTART_SECONDS", 1.0)
    worker = Worker(lambda: rdrr.load(shallow_package, backend="cpu", context=64), slots=2, queue=8)
    model = worker.start()

    def fail(*_: object) -> None:
        raise SystemExit("the process of the model was killed")

    monkeypatch.setattr(sys, "stderr", log())
    with serving(worker) as server, ThreadPoolExecutor(4) as pool:
        assert server.ask("GET", "/health?generate=1")[0] == 200
        monkeypatch.setattr(model._opened.backend.batch(2, 64), "greedy", fail)
        raw = json.dumps(ASKED).encode()
        asks = [pool.submit(server.ask, "POST", "/v1/completions", raw) for _ in range(4)]
        answers = [ask.result(60) for ask in asks]
        assert all(status in (500, 503) and b'"error"' in answer for status, answer in answers)
        assert server.ask("GET", "/health")[0] == 503
        assert is_renewed(worker, model)
        assert server.ask("GET", "/health?generate=1")[0] == 200
        assert server.ask("POST", "/v1/completions", raw)[0] == 200
    worker.stop(60)


class InstantWorker(ScriptedWorker):
    """A worker whose texts are there at once, and which remembers nothing."""

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            for number in range(4):
                job.deliver(Event("word ", [number + 3]))
            job.deliver(self.last)


@pytest.fixture(scope="module")
def instant(shallow_package) -> Iterator[Running]:
    with (
        rdrr.load(shallow_package, backend="cpu", context=64) as model,
        serving(InstantWorker(model)) as server,
    ):
        yield server


@contextmanager
def many_files() -> Iterator[None]:
    """Let the process open more files for a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask_often(server: Running, count: int) -> None:
    """Send requests on one connection, every second of them streamed."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=300)
    for _ in range(count):
        assert b"word word" in completed(connection)
        completed(connection, stream=True)
    connection.close()


@pytest.mark.thorough
def test_10000_requests_leave_the_memory_as_it_was(instant):
    """The first 2,000 fill what is allocated once."""

    def run(requests: int) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            each = requests // CLIENTS // 2
            for done in [pool.submit(ask_often, instant, each) for _ in range(CLIENTS)]:
                done.result()

    run(2_000)
    before = sample()
    run(10_000)
    after = sample()
    assert after.memory - before.memory < 8 << 20
    assert after.files <= before.files + 2
    assert after.threads == before.threads


@pytest.mark.thorough
def test_1000_connections_are_served_beside_each_other(instant):
    with many_files(), ExitStack() as opened:
        connections = [HTTPConnection("127.0.0.1", instant.port, timeout=300) for _ in range(1_000)]
        for connection in connections:
            opened.callback(connection.close)
            connection.connect()
        raw = json.dumps(ASKED)
        for connection in connections:
            connection.request("POST", "/v1/completions", raw)
        assert {connection.getresponse().status for connection in connections} == {200}
    assert instant.ask("GET", "/health")[0] == 200


@pytest.mark.thorough
def test_1000_half_open_connections_keep_nobody_out(instant):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with many_files(), ExitStack() as held:
        for number in range(1_000):
            connection = socket.create_connection(("127.0.0.1", instant.port), timeout=300)
            held.enter_context(connection).sendall(head[: None if number % 2 else 20])
        assert completed(HTTPConnection("127.0.0.1", instant.port, timeout=300))
    assert instant.ask("GET", "/health")[0] == 200


@pytest.mark.thorough
def test_bodies_of_100_megabytes_are_refused_without_being_held(instant):
    before = sample()
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", instant.port), timeout=300) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"%x\r\n%s\r\n" % (1 << 20, b"a" * (1 << 20))
            try:
                for _ in range(100):
                    connection.sendall(chunk)
            except ConnectionError:
                continue  # the server has closed the connection before it came to the end
            assert b" 413 " in connection.recv(4096).splitlines()[0]
    assert sample().memory - before.memory < 64 << 20
    assert instant.ask("GET", "/health")[0] == 200
