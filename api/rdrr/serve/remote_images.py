"""Images that a client names by a URL, fetched by the server only if its user allows that.

A client could otherwise make the server ask machines that the client cannot reach. So only public
addresses are asked: the name of a host is resolved once, every address that it has is checked, and
the connection goes to one of these addresses, for each redirect anew. Time, bytes, redirects and
images of a request are limited.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from ipaddress import IPv6Address, IPv6Network, ip_address
from threading import Timer
from time import monotonic
from urllib.parse import SplitResult, urljoin, urlsplit

from rdrr_format.errors import GenerationError, RdrrError, UsageError

MOST_BYTES = 20 << 20
"""Most bytes of an image."""

MOST_SECONDS = 20.0
"""Most seconds for all images of a request."""

MOST_IMAGES = 8
"""Most images of a request."""

MOST_REDIRECTS = 3

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 1 << 16
_UNICAST = IPv6Network("2000::/3")
"""The public addresses of IPv6. Outside, some stand for one of IPv4, which may be any."""


def _resolve(host: str, port: int) -> list[str]:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


def _connect(address: str, port: int, timeout: float) -> socket.socket:
    return socket.create_connection((address, port), timeout)


@dataclass(frozen=True)
class Network:
    """What leads to other machines.

    Attributes:
        resolve: Returns the addresses of a host, given its name and a port.
        connect: Returns a connection, given an address, a port and the seconds to wait.
        encrypt: Returns an encrypted connection, given a connection and the name of the host.
    """

    resolve: Callable[[str, int], list[str]] = _resolve
    connect: Callable[[str, int, float], socket.socket] = _connect
    encrypt: Callable[[socket.socket, str], socket.socket] = field(
        # Hands are shaken with the first byte, when the connection can be ended from outside.
        default=lambda plain, host: ssl.create_default_context().wrap_socket(
            plain, server_hostname=host, do_handshake_on_connect=False
        )
    )


class RemoteImages:
    """Fetches the images of one request.

    Args:
        network: What leads to other machines.
        seconds: Most seconds for all of them.
    """

    def __init__(self, network: Network, seconds: float = MOST_SECONDS) -> None:
        self._network = network
        self._end = monotonic() + seconds
        self._left = MOST_IMAGES

    def fetch(self, url: str, where: str) -> bytes:
        """Return the content of a URL.

        Args:
            url: The URL.
            where: What an error message calls the image.

        Raises:
            UsageError: The URL is none that is fetched, or leads to a machine that is not public.
            GenerationError: It cannot be fetched, or is too large.
        """
        self._left -= 1
        if self._left < 0:
            expected = f"at most {MOST_IMAGES} URLs in a request"
            raise UsageError("too many images are to be fetched", where=where, expected=expected)
        for _ in range(MOST_REDIRECTS + 1):
            try:
                content, target = self._ask(_checked(url, where), where)
            except (OSError, HTTPException, UnicodeError) as error:
                reason = "no answer in time" if monotonic() >= self._end else _reason(error)
                raise _failed(where, reason) from error
            if target is None:
                return content
            url = urljoin(url, target)
        raise _failed(where, f"more than {MOST_REDIRECTS} redirects")

    def _ask(self, url: SplitResult, where: str) -> tuple[bytes, str | None]:
        """Return the content of a URL, or where it leads to."""
        host, port = str(url.hostname), url.port or _PORTS[url.scheme]
        addresses = _public(self._network.resolve(host, port), host, where)
        connected = self._connected(addresses, port)
        if url.scheme == "https":
            connected = self._network.encrypt(connected, host)
        with closing(connected), closing(HTTPConnection(host, port)) as connection:
            connection.sock = connected
            # A machine that sends a byte now and then would never reach the limit of one wait.
            timer = Timer(self._seconds(), _shut, [connected])
            timer.daemon = True
            timer.start()
            try:
                path = (url.path or "/") + (f"?{url.query}" if url.query else "")
                connection.request("GET", path, headers={"Accept": "image/*"})
                with connection.getresponse() as response:
                    content = _content(response, where)
            finally:
                timer.cancel()
        self._seconds()  # a connection that was cut looks like one that has ended
        return content

    def _connected(self, addresses: list[str], port: int) -> socket.socket:
        """Return a connection to the first of some addresses that takes one."""
        *others, last = addresses
        for address in others:
            with suppress(OSError):
                return self._network.connect(address, port, self._seconds())
        return self._network.connect(last, port, self._seconds())

    def _seconds(self) -> float:
        """Return the seconds that are left.

        Raises:
            TimeoutError: None are.
        """
        left = self._end - monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)


def _content(response: HTTPResponse, where: str) -> tuple[bytes, str | None]:
    """Return the content of an answer, or where it leads to."""
    if response.status in _REDIRECTS and (target := response.getheader("location")):
        return b"", target
    if response.status != 200:
        raise _failed(where, f"status {response.status}")
    content = bytearray()
    while chunk := response.read(_CHUNK):
        content += chunk
        if len(content) > MOST_BYTES:
            message = "the image is too large to be fetched"
            raise GenerationError(message, where=where, expected=f"at most {MOST_BYTES} bytes")
    if response.length:
        raise IncompleteRead(bytes(content))
    return bytes(content), None


def _checked(url: str, where: str) -> SplitResult:
    """Return the parts of a URL that may be fetched."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(
            "an image cannot be fetched from there",
            where=where,
            expected="a URL of http or https",
            found=ascii(url[:64])[1:-1],
        )
    if parts.username is not None:
        raise UsageError("the URL of an image holds a user name", where=where)
    return parts


def _public(addresses: list[str], host: str, where: str) -> list[str]:
    """Return the addresses of a host, all of which must be public.

    Raises:
        UsageError: One is not. Which is not said, since the client may not know.
    """
    if not addresses or not all(map(_is_public, addresses)):
        raise UsageError(
            "images are fetched from public addresses only", where=where, found=ascii(host)[1:-1]
        )
    return addresses


def _is_public(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:  # an address of one link, as in fe80::1%eth0, or none
        return False
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address not in _UNICAST or address.sixtofour or address.teredo:
            return False
    return address.is_global and not address.is_multicast


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "the certificate or the encryption is refused"
    return "no connection" if isinstance(error, OSError) else "not an answer of HTTP"


def _failed(where: str, reason: str) -> RdrrError:
    return GenerationError("the image cannot be fetched", where=where, found=reason)
