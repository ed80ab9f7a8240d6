"""Streams of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

WAITING = ": waiting\n\n"
"""A comment, which keeps a connection open."""

DONE = "data: [DONE]\n\n"
_UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}


def data(value: Any, event: str | None = None) -> str:
    """Return a value as an event.

    Args:
        value: The value, which becomes JSON.
        event: Its name; None for none.
    """
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n"


def stream(parts: AsyncIterator[str], media_type: str = "text/event-stream") -> StreamingResponse:
    """Return a response that sends text as it comes."""
    return StreamingResponse(parts, media_type=media_type, headers=_UNBUFFERED)
