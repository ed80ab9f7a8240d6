"""A server fetches images for clients only if it may, and only from public addresses."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rdrr.serve import remote_images
from rdrr.serve.remote_images import MOST_BYTES, MOST_IMAGES, Network, RemoteImages
from rdrr_format.errors import GenerationError, RdrrError, UsageError
from support.remote_machine import PUBLIC, Machine, Reply

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nimage"


def saying(*answers: bytes) -> Reply:
    left = iter(answers)
    return lambda connection, _: connection.sendall(next(left))


def moved(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


@contextmanager
def refused(kind: type[RdrrError], message: str) -> Iterator[None]:
    with pytest.raises(kind, match=message) as caught:
        yield
    assert len(str(caught.value)) < 300


def test_an_image_is_fetched_from_the_address_that_was_checked():
    machine = Machine(saying(OK), {"host": [PUBLIC]})
    fetch = RemoteImages(machine.network()).fetch
    assert fetch("http://host/a/b.png?size=2", "messages.0") == b"image"
    assert machine.asked == ["GET /a/b.png?size=2 HTTP/1.1"]
    assert (machine.resolved, machine.connected) == (["host"], [PUBLIC])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.8",
        "172.16.3.4",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "nonsense",
    ],
)
def test_a_machine_without_a_public_address_is_not_asked(address):
    for addresses in ([address], [PUBLIC, address]):
        machine = Machine(saying(OK), {"host": addresses})
        with refused(UsageError, "public addresses only") as _:
            RemoteImages(machine.network()).fetch("http://host/a.png", "image")
        assert machine.connected == []


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946"])
def test_public_addresses_are_asked(address):
    machine = Machine(saying(OK), {"host": [address]})
    assert RemoteImages(machine.network()).fetch("http://host/a.png", "image") == b"image"
    assert machine.connected == [address]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/a.png",
        "file:///etc/passwd",
        "http:///a.png",
        "http://",
        "http://host:0/a.png",
        "http://host:99999/a.png",
        "http://[::1/a.png",
        "http://host/a b.png",
        "http://host/a\r\nX: y",
        "http://h\u00f6st/a.png",
        "httpx://host/a.png",
    ],
)
def test_other_urls_are_refused(url):
    machine = Machine(saying(OK), {})
    with refused(UsageError, "cannot be fetched from there"):
        RemoteImages(machine.network()).fetch(url, "image")
    assert machine.resolved == []


def test_a_user_name_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(UsageError, match="user name") as caught:
        RemoteImages(Machine(saying(OK), {}).network()).fetch("http://me:secret@host/a", "image")
    assert "secret" not in str(caught.value)


def test_redirects_are_followed_to_public_addresses_only():
    names = {"inside": ["10.1.2.3"]}
    machine = Machine(saying(moved("//other/b.png"), moved("/c.png"), OK), names)
    assert RemoteImages(machine.network()).fetch("http://host/a.png", "image") == b"image"
    assert machine.resolved == ["host", "other", "other"]
    assert [line.split()[1] for line in machine.asked] == ["/a.png", "/b.png", "/c.png"]
    for target in ("http://inside/b.png", "file:///etc/passwd", "http://h\u00e4/"):
        machine = Machine(saying(moved(target)), names)
        with pytest.raises(UsageError, match=r"public addresses only|cannot be fetched"):
            RemoteImages(machine.network()).fetch("http://host/a.png", "image")
        assert len(machine.connected) == 1
    machine = Machine(saying(*[moved("/a.png")] * 9), names)
    with refused(GenerationError, "more than 3 redirects"):
        RemoteImages(machine.network()).fetch("http://host/a.png", "image")
    assert len(machine.asked) == 4


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"SSH-2.0-server\r\n", "not an answer of HTTP"),
        (b"", "no connection"),
        (OK[:-2], "not an answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n", "not an answer of HTTP"),
    ],
)
def test_what_is_no_image_is_not_taken(answer, reason):
    machine = Machine(saying(answer), {})
    with refused(GenerationError, f"cannot be fetched.*{reason}"):
        RemoteImages(machine.network()).fetch("http://host/a.png", "image")


def test_an_image_that_is_too_large_is_not_read_whole(monkeypatch):
    monkeypatch.setattr(remote_images, "MOST_BYTES", 1 << 17)

    def endless(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(bytes(1 << 16))

    with refused(GenerationError, "too large to be fetched"):
        RemoteImages(Machine(endless, {}).network()).fetch("http://host/a.png", "image")
    assert MOST_BYTES == 20 << 20


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: "])
def test_a_machine_that_tells_a_byte_now_and_then_is_left_in_time(head):
    ended = threading.Event()

    def slow(connection: socket.socket, _: str) -> None:
        connection.sendall(head)
        try:
            while not ended.wait(0.02):
                connection.sendall(b".")
        finally:
            ended.set()

    with refused(GenerationError, "no answer in time"):
        RemoteImages(Machine(slow, {}).network(), 0.2).fetch("http://host/a.png", "image")
    assert ended.wait(60)


def test_the_images_of_a_request_share_limits():
    machine = Machine(lambda connection, _: connection.sendall(OK), {})
    images = RemoteImages(machine.network())
    for _ in range(MOST_IMAGES):
        images.fetch("http://host/a.png", "image")
    with refused(UsageError, "too many images"):
        images.fetch("http://host/a.png", "image")
    late = RemoteImages(machine.network(), -1.0)
    with refused(GenerationError, "no answer in time"):
        late.fetch("http://host/a.png", "image")


def test_another_address_is_asked_if_the_first_takes_no_connection():
    machine = Machine(saying(OK), {"host": ["2606:2800:220:1::1", PUBLIC]})

    def connect(address: str, port: int, timeout: float) -> socket.socket:
        if ":" in address:
            raise OSError("no route")
        return machine.connect(address, port, timeout)

    network = Network(machine.resolve, connect)
    assert RemoteImages(network).fetch("http://host/a.png", "image") == b"image"
    with refused(GenerationError, "no connection"):
        RemoteImages(Network(machine.resolve, lambda *_: connect("::", 0, 1))).fetch(
            "http://host/a.png", "image"
        )


def test_https_checks_the_name_of_the_host_and_names_without_an_address_are_refused():
    machine = Machine(saying(b""), {})

    def encrypt(plain: socket.socket, host: str) -> socket.socket:
        assert host == "host"
        plain.close()
        raise ssl.SSLError("certificate verify failed")

    network = Network(machine.resolve, machine.connect, encrypt)
    with refused(GenerationError, "certificate or the encryption is refused"):
        RemoteImages(network).fetch("https://host/a.png", "image")

    def unknown(host: str, _port: int) -> list[str]:
        raise socket.gaierror("unknown") if host == "host" else UnicodeError("label too long")

    for host in ("host", "x" * 80):
        with refused(GenerationError, "cannot be fetched"):
            RemoteImages(Network(unknown)).fetch(f"http://{host}/a.png", "image")
