"""Engines that encode: threads of this process, or the workers of a Ray cluster.

Another engine is a module with a class that implements `Engine`, and a line in `_ENGINES`.
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
    """Check the options of the engine.

    Raises:
        UsageError: The engine does not exist, or it takes no address.
    """
    if name not in _ENGINES:
        raise UsageError("`engine` has no such value", expected=", ".join(ENGINES), found=name)
    if address is not None and name != "ray":
        raise UsageError("`ray_address` is only for `engine` ray", found=f"`engine` {name}")


def open_engine(
    name: str, workers: int, address: str | None = None
) -> AbstractContextManager[Engine]:
    """Open an engine for a `with` block.

    Args:
        name: One of `ENGINES`.
        workers: Number of threads, or of Ray workers to start if no address is given.
        address: Address of the Ray cluster.

    Raises:
        UsageError: The engine is not installed.
        WorkerError: The cluster cannot be reached.
    """
    return _ENGINES[name](workers, address)
