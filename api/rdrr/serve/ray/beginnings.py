"""Which replica has read which beginnings of prompts.

A beginning is the text of a request up to a multiple of `BLOCK` characters. Its digest continues
that of the shorter one, so a table of digests finds the longest beginning that a replica has read.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import Any

BLOCK = 128
"""Characters from one beginning to the next."""

MOST_BEGINNINGS = 1 << 17
"""Beginnings that are remembered, of all replicas together."""

FIELDS = ("model", "tools", "system", "instructions", "messages", "input", "prompt", "input_prefix")
"""The fields of a request that a prompt is written from, in the order in which templates write."""


class Beginnings:
    """The replicas that have read beginnings; the ones used longest ago are forgotten first.

    Args:
        most: Number of beginnings that are remembered.
    """

    def __init__(self, most: int = MOST_BEGINNINGS) -> None:
        self._readers: OrderedDict[bytes, str] = OrderedDict()
        self._most = most

    def reader(self, body: bytes, replicas: Collection[str]) -> str | None:
        """Return which of the replicas has read the longest beginning of a request.

        Args:
            body: The request.
            replicas: Names of the replicas that could take it.

        Returns:
            Its name; None if none of them has read any of it.
        """
        reader = None
        for digest in _digests(body):
            name = self._readers.get(digest)
            if name is None:
                break
            if name in replicas:
                reader = name
        return reader

    def add(self, body: bytes, replica: str) -> None:
        """Note that a replica reads a request."""
        for digest in _digests(body):
            self._readers[digest] = replica
            self._readers.move_to_end(digest)
        while len(self._readers) > self._most:
            self._readers.popitem(last=False)


def _digests(body: bytes) -> Iterator[bytes]:
    """Yield the digests of the beginnings of a request, shortest first."""
    text, digest = _text(body).encode(), b""
    for end in range(BLOCK, len(text) + 1, BLOCK):
        digest = blake2b(digest + text[end - BLOCK : end], digest_size=16).digest()
        yield digest


def _text(body: bytes) -> str:
    """Return what a prompt is written from; nothing for what is no request."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    return json.dumps([fields.get(name) for name in FIELDS], ensure_ascii=True)
