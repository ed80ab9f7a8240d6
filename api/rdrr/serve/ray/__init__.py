"""`rdrr.serve.ray:app`: a server on a Ray cluster, as many replicas as its requests need.

    front      the application: reads requests, and hands each to a replica
    router     chooses the replica, by what each has read
    replica    a server in a process of its own, called with a request that has been read
    beginnings which replica has read which beginnings of prompts

    serve run rdrr.serve.ray:app model=PATH replicas=2

A module imports only modules below it in this list.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return `app`, for which Ray is imported."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rdrr_format.extras import import_extra

    import_extra("ray.serve", "serve-ray", "a server on Ray")
    from rdrr.serve.ray.front import app

    return app
