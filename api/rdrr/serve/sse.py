"""Streams of server-sent events."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

WAITING = ": waiting\n\n"
"""A comment, which keeps a connection open."""

DONE = "data: [DONE]\n\n"
_UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}

_ENCODER = json.JSONEncoder(ensure_ascii=False)
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
"""Characters at which clients cut lines that JSON does not escape."""


def as_line(value: Any) -> str:
    """Return a value as JSON that every client takes for a single line."""
    text = _ENCODER.encode(value)
    return _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", text)


def data(value: Any, event: str | None = None) -> str:
    """Return a value as an event.

    Args:
        value: The value, which becomes JSON.
        event: Its name; None for none.
    """
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {as_line(value)}\n\n"


def stream(parts: AsyncIterator[str], media_type: str = "text/event-stream") -> StreamingResponse:
    """Return a response that sends text as it comes."""
    return StreamingResponse(parts, media_type=media_type, headers=_UNBUFFERED)
