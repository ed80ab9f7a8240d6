"""Who encodes: threads of this process, or the workers of a Ray cluster.

A further engine is a module with a class that has `map`, and a line in `_ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType

from rdrr_format.errors import UsageError

from rdrr_converter.engines import ray_cluster, threads
from rdrr_converter.engines._base import Engine, WorkerError

__all__ = ["ENGINES", "Engine", "WorkerError", "check_engine", "open_engine"]

_ENGINES: Mapping[str, Callable[[int, str | None], AbstractContextManager[Engine]]] = (
    MappingProxyType({"threads": threads.open_engine, "ray": ray_cluster.open_engine})
)

ENGINES = tuple(_ENGINES)
"""Names of the engines."""


def check_engine(name: str, address: str | None) -> None:
    """Refuse what means nothing.

    Raises:
        UsageError: There is no such engine, or it has no address.
    """
    if name not in _ENGINES:
        raise UsageError("`engine` has no such value", expected=", ".join(ENGINES), found=name)
    if address is not None and name != "ray":
        raise UsageError("`ray_address` is only for `engine` ray", found=f"`engine` {name}")


def open_engine(
    name: str, workers: int, address: str | None = None
) -> AbstractContextManager[Engine]:
    """An engine, within a `with` block.

    Args:
        name: One of `ENGINES`.
        workers: Threads, or Ray workers that are started where there is no cluster.
        address: Of the Ray cluster.

    Raises:
        UsageError: The engine is not installed.
        WorkerError: The cluster cannot be reached.
    """
    return _ENGINES[name](workers, address)
