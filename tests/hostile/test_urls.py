"""URLs that are wrong: each is refused in one line before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
import rdrr
from rdrr_format.errors import RdrrError, StoreError, UsageError
from rdrr_format.locations import local_path, remote_url
from rdrr_format.opening import open_store
from support.commands import error_line
from support.commands import rdrr as run
from support.range_server import QuietHandler, running, served

CALLS: dict[str, Callable[[str], object]] = {
    "open_package": rdrr.open_package,
    "validate": rdrr.validate,
    "open_store": open_store,
    "convert from": lambda url: rdrr.convert(url, "out"),
    "convert to": lambda url: rdrr.convert("absent", url),
}

WRONG = {
    "HTTP://host/p": "no valid scheme .expected http://, found HTTP://host/p",
    "://host/p": "no valid scheme .expected a scheme such as https://",
    "ht tp://host/p": "no valid scheme",
    "http://": "impossible host or port",
    "https:///p": "impossible host or port",
    "http://:80/p": "impossible host or port",
    "http://host:0/p": "impossible host or port .expected .* a port from 1 to 65535",
    "http://host:65536/p": "impossible host or port .found Port out of range",
    "http://host:-1/p": "impossible host or port",
    "http://host:http/p": "impossible host or port",
    "http://[::1/p": "impossible host or port .found Invalid IPv6 URL",
    "http://[x]/p": "impossible host or port",
    "http://a..b/p": "impossible host or port",
    f"http://{'a' * 64}/p": "impossible host or port",
    "http://host/a b": "must be escaped .*found ' '",
    "http://ho st/p": "must be escaped .*found ' '",
    "http://host/a\nb": r"must be escaped .*found '\\n'",
    "http://host/ä": "must be escaped .*found 'ä'",
    "http://host/\ud800": "must be escaped .*found",
    "http://host/p?part=1": "a query or a fragment",
    "http://host/p#part": "a query or a fragment",
    "s3://": "names nothing .expected s3://NAME",
    "http:/host/p": "wrong form .expected http://..., found http:/host/p",
    "HTTPS:host": "wrong form .expected https://...",
    "hf:org/name": "wrong form .expected hf://...",
    "file:model": "wrong form .expected file://...",
    "file://host/p": "wrong form .expected file:///PATH, with the whole path",
}


@pytest.mark.parametrize("url", WRONG, ids=ascii)
def test_a_wrong_url_is_wrong_usage_wherever_it_is_given(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in CALLS.values():
        with pytest.raises(UsageError, match=WRONG[url]) as caught:
            call(url)
        assert caught.value.line().isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    ["http://host", "https://host:65535/a%20b/c", "http://[::1]:8080/p", "https://xn--bcher-kva.example/p",
     "s3://bucket/p", "memory:", "simplecache::s3://bucket/p"],
)  # fmt: skip
def test_a_right_url_is_taken_as_it_is(url):
    url = "memory://" if url == "memory:" else url
    assert remote_url(f"{url}/").rstrip("/") == url.rstrip("/")


def test_a_url_of_a_file_is_a_path(tmp_path):
    assert local_path(f"file://{tmp_path}") == tmp_path
    assert local_path("https") == Path("https")


def test_a_password_is_not_repeated():
    done = run("validate", "https://me:secret@host/p")
    assert "holds a user name or a password" in error_line(done)
    assert "secret" not in done.out + done.err
    assert done.code == 2


@pytest.mark.parametrize(
    "url", ["nosuch://host/p", "github://host", "zip://absent", "reference://x", "dir://x"]
)
def test_a_scheme_without_a_usable_client_is_a_store_error(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in CALLS.values():
        with pytest.raises(StoreError, match=rf"{url}.*: URL cannot be opened .*local folder"):
            call(url)


def redirecting(target: str) -> type[SimpleHTTPRequestHandler]:
    """Return the handler of a server that redirects every request."""

    class Handler(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()

    return Handler


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("file:///etc/hostname", "'file:///etc/hostname' is not allowed"),
        ("ftp://127.0.0.1/p", "redirects to something else than a web server .*found ftp://"),
        ("data:text/json,1", "is not allowed"),
        ("http://[::1/p", "cannot be reached .found Invalid IPv6 URL"),
        ("http://127.0.0.1:1x/p", "cannot be reached"),
        ("/again", "infinite loop"),
    ],
)
def test_a_redirect_leads_to_a_web_server_or_nowhere(target, words):
    with running(redirecting(target)) as url:
        for call in (CALLS["open_package"], CALLS["convert from"]):
            with pytest.raises(RdrrError, match=words):
                call(url)


def test_a_redirect_to_another_web_server_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"here")
    with (
        served(tmp_path, QuietHandler) as other,
        running(redirecting(f"{other}/file?signature=1")) as url,
    ):
        assert open_store(url).read("file").tobytes() == b"here"
