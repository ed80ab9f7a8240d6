"""The server against clients that are wrong, hostile or gone."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
from codecs import BOM_UTF8
from contextlib import ExitStack

import pytest
from rdrr.serve.guards import MOST_BYTES, hosts_of
from rdrr.serve.jobs import Job
from support.serving import serving

ASKED = {"prompt": "And it came to pass", "max_tokens": 3, "temperature": 0}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
JSON = {"content_type": "application/json"}


def post(server, path: str, body: object, **headers: str) -> tuple[int, dict]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = server.ask("POST", path, raw, **JSON, **headers)
    return status, json.loads(answer)


def until_idle(worker) -> None:
    """Wait for the end of jobs, also of those whose clients have gone."""
    for _ in range(3000):
        if not worker.jobs:
            return
        threading.Event().wait(0.1)
    pytest.fail("the jobs do not end")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"prompt": 5}', b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "open", "list", "null", "number", "not UTF-8", "deep"],
)
def test_a_body_that_is_no_request_is_refused(server, body):
    status, answer = post(server, "/v1/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert post(server, "/v1/completions", ASKED)[0] == 200


def test_a_body_may_begin_with_a_byte_order_mark(server):
    body = json.dumps({"content": "a"}).encode()
    assert post(server, "/tokenize", BOM_UTF8 + body) == post(server, "/tokenize", body)
    assert post(server, "/tokenize", BOM_UTF8 * 2 + body)[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "status", "parts"),
    [
        ("GET", "/v1/images", 404, ["there is no such route"]),
        ("POST", "/chat/completions", 404, ["did you mean /v1/chat/completions?"]),
        ("GET", "/models", 404, ["did you mean /v1/models?"]),
        ("POST", "/api/nope", 404, ["there is no such route"]),
        ("GET", "/v1/completions", 405, ["expected POST", "found GET"]),
        ("DELETE", "/v1/messages", 405, ["expected POST", "found DELETE"]),
        ("GET", "/health", 200, []),
    ],
)
def test_a_route_that_is_not_there_is_named_by_the_error(server, method, path, status, parts):
    answered, answer = server.ask(method, path, b"{}")
    error = json.loads(answer).get("error", "")
    message = error if isinstance(error, str) else error["message"]
    assert (answered, [part for part in parts if part not in message]) == (status, [])
    assert message.startswith(path) == bool(parts)


def test_a_body_is_bounded_by_what_it_says_and_by_what_it_is(server):
    assert server.ask("POST", "/v1/completions", b"", content_length=str(MOST_BYTES + 1))[0] == 413
    chunks = [b"a" * 65_536] * (MOST_BYTES // 65_536 + 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for chunk in chunks:
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        connection.sendall(b"0\r\n\r\n")
        assert b" 413 " in connection.recv(4096).splitlines()[0]


def test_a_compressed_body_is_refused_as_that(server):
    body = json.dumps(ASKED).encode()
    status, answer = post(server, "/v1/completions", gzip.compress(body), content_encoding="gzip")
    assert (status, "compression" in answer["error"]["message"]) == (415, True)
    assert post(server, "/v1/completions", body, content_encoding="identity")[0] == 200


def test_only_names_of_this_machine_are_served_on_loopback(server):
    assert server.ask("GET", "/health", host="evil.example")[0] == 403
    assert server.ask("GET", "/health", host=f"localhost:{server.port}")[0] == 200
    assert server.ask("GET", "/health", host="LocalHost")[0] == 200
    assert server.ask("GET", "/health", host="")[0] == 403
    assert hosts_of("0.0.0.0") is None


def test_a_program_that_names_no_host_is_served(server):
    """Balancers ask for the health in HTTP/1.0, which has no header `Host`."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.recv(4096).splitlines()[0]


@pytest.mark.parametrize(
    ("origins", "origin", "site", "status"),
    [
        ((), "http://evil.example", "cross-site", 403),
        ((), "http://localhost:3000", "same-site", 403),
        ((), "http://127.0.0.1", "same-origin", 200),
        ((), None, None, 200),
        (("http://a.example",), "http://a.example", "cross-site", 200),
        (("http://a.example",), "http://b.example", "cross-site", 403),
        (("*",), "null", "cross-site", 200),
    ],
)
def test_pages_of_other_origins_send_no_requests(worker, origins, origin, site, status):
    stated = {"origin": origin, "sec_fetch_site": site}
    headers = {name: value for name, value in stated.items() if value is not None}
    with serving(worker, origins=origins) as server:
        assert post(server, "/tokenize", {"content": "a"}, **headers)[0] == status
        assert server.ask("GET", "/v1/models", **headers)[0] == 200


@pytest.mark.parametrize(
    ("origin", "status"), [("http://127.0.0.1:{port}", 200), ("http://evil.example", 403)]
)
def test_a_page_of_another_origin_is_known_where_the_browser_states_no_site(server, origin, status):
    """Browsers send `Sec-Fetch-Site` to loopback and https only, `Origin` to all."""
    origin = origin.format(port=server.port)
    assert post(server, "/tokenize", {"content": "a"}, origin=origin)[0] == status


def test_a_key_is_asked_for_everywhere_but_by_health(worker):
    with serving(worker, key="secret") as server:
        assert server.ask("GET", "/health")[0] == 200
        assert server.ask("GET", "/v1/models")[0] == 401
        assert server.ask("GET", "/v1/models", authorization="Bearer wrong")[0] == 401
        assert server.ask("GET", "/v1/models", authorization="Bearer secret")[0] == 200
        assert server.ask("GET", "/v1/models", x_api_key="secret")[0] == 200
        assert server.ask("GET", "/v1/models", authorization="bearer  secret")[0] == 200
        assert server.ask("GET", "/v1/models", authorization="Basic secret")[0] == 401


def test_a_key_may_have_any_letters(worker):
    with serving(worker, key="schlüssel") as server:
        for sent, status in (("schlüssel", 200), ("schlussel", 401)):
            stated = sent.encode().decode("latin-1")  # how bytes of UTF-8 are written in a header
            assert server.ask("GET", "/v1/models", x_api_key=stated)[0] == status


def test_a_client_that_goes_frees_its_place(server, worker):
    body = json.dumps(ASKED | {"max_tokens": 150, "stream": True}).encode()
    for _ in range(worker.slots + 2):
        with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            )
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            assert b" 200 " in connection.recv(4096)
    assert post(server, "/v1/completions", ASKED)[0] == 200
    until_idle(worker)


def test_a_client_that_goes_within_its_body_leaves_no_traceback(server, caplog):
    body = b'{"content": "a"}'
    assert post(server, "/tokenize", body)[0] == 200
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
            head = HEAD.replace(b"/v1/completions", b"/tokenize")
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1])
        assert server.ask("GET", "/health")[0] == 200
    finally:
        logger.removeHandler(caplog.handler)
    assert not [record.message for record in caplog.records]


def test_connections_that_say_nothing_keep_nobody_out(server):
    with ExitStack() as held:
        for _ in range(300):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=300)
            held.enter_context(connection).sendall(HEAD[:20])
        assert post(server, "/v1/completions", ASKED)[0] == 200
    assert server.ask("GET", "/health")[0] == 200


def test_a_client_that_does_not_read_delays_nobody(server):
    body = json.dumps(ASKED | {"max_tokens": 100, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert post(server, "/v1/completions", ASKED)[0] == 200
        assert b" 200 " in connection.recv(64)


def test_more_requests_than_may_wait_are_told_to_come_again(server, worker):
    """16 texts have a place; a request for as many finds too few while another job works."""
    until_idle(worker)
    whole = ASKED | {"max_tokens": 2, "n": 16}
    released = threading.Event()
    worker.submit(Job((), lambda _: None, 0, work=lambda _: released.wait(300)))
    try:
        assert [post(server, "/v1/completions", whole)[0] for _ in range(2)] == [429, 429]
    finally:
        released.set()
    until_idle(worker)
    assert post(server, "/v1/completions", whole)[0] == 200
    assert worker.jobs == 0


def test_health_means_that_tokens_come(server):
    assert server.ask("GET", "/health?generate=1") == (200, b'{"status":"ok"}')


def test_the_counts_are_those_of_prometheus(server):
    for _ in range(2):
        post(server, "/v1/completions", ASKED)
    text = server.ask("GET", "/metrics")[1].decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines["rdrr_new_tokens_total"]) >= 3
    prompts, cached = (
        float(lines[f"rdrr_{name}_total"]) for name in ("prompt_tokens", "cached_prompt_tokens")
    )
    assert 0 < cached < prompts
    assert float(lines['rdrr_requests_total{route="/v1/completions",status="200"}']) >= 1
    assert float(lines["rdrr_jobs"]) == 0


def test_text_becomes_ids_and_ids_become_text(server, worker):
    _, answer = post(server, "/tokenize", {"content": "And it came to pass"})
    assert answer["tokens"] == worker.model.encode_as_is("And it came to pass")
    _, answer = post(server, "/detokenize", {"tokens": answer["tokens"]})
    assert answer["content"] == "And it came to pass"
    assert post(server, "/detokenize", {"tokens": [-1]})[0] == 400


def test_the_prompt_of_a_chat_can_be_seen(server):
    messages = [{"role": "user", "content": "Hello"}]
    _, answer = post(server, "/apply-template", {"messages": messages})
    expected = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert answer["prompt"] == expected
    assert answer["tokens"] == server.worker.model.encode(expected)
