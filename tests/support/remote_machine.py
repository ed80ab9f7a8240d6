"""A machine behind addresses that a test invents, which no test reaches through a network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from rdrr.serve.remote_images import Network

PUBLIC = "93.184.216.34"
Reply = Callable[[socket.socket, str], None]


class Machine:
    """A machine of this process behind addresses that a test invents.

    Args:
        reply: Answers a request, given its connection and its first line.
        names: Addresses of each host.

    Attributes:
        asked: The first lines of the requests.
        resolved: The names that were resolved.
        connected: The addresses that connections went to.
    """

    def __init__(self, reply: Reply, names: dict[str, list[str]]) -> None:
        self._reply, self._names = reply, names
        self.asked: list[str] = []
        self.resolved: list[str] = []
        self.connected: list[str] = []

    def network(self) -> Network:
        return Network(self.resolve, self.connect)

    def resolve(self, host: str, _port: int) -> list[str]:
        self.resolved.append(host)
        return self._names.get(host, [PUBLIC])

    def connect(self, address: str, _port: int, timeout: float) -> socket.socket:
        self.connected.append(address)
        here, there = socket.socketpair()
        here.settimeout(timeout)
        threading.Thread(target=self._serve, args=(there,), daemon=True).start()
        return here

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                if not (part := connection.recv(4096)):
                    return
                request += part
            self.asked.append(request.decode().split("\r\n")[0])
            try:
                self._reply(connection, self.asked[-1])
            except OSError:  # the other side has enough
                return
