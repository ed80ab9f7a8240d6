"""The workers of a Ray cluster, which read the source themselves.

Only the description of the work goes to a worker (`SourceTensor`s say where their values are, not
what they are), and only encoded bytes come back. The checkpoint must therefore be found under the
same path on every machine, and this package be installed there.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rdrr_format.errors import RdrrError, UsageError

from rdrr_converter.engines._base import Item, Result, WorkerError, in_order

AHEAD = 4
"""Items under way for each processor of the cluster; a round trip takes longer than in a thread."""

KNOCK_SECONDS = 10


class RayEngine:
    """An engine whose workers are those of the connected cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._limit = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """As `Engine.map`.

        Raises:
            RdrrError: As the function raised it on the worker.
            WorkerError: A worker was lost, and so were those that took its place.
        """
        remote = self._ray.remote(function)
        return in_order(items, remote.remote, self._result, self._limit)

    def _result(self, ticket: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ticket)
        except errors.RayTaskError as error:
            if isinstance(error.cause, RdrrError):
                raise error.cause from None
            if isinstance(error.cause, (errors.RaySystemError, ImportError)):
                raise WorkerError(
                    "a Ray worker cannot do the work",
                    found=str(error.cause).strip().splitlines()[-1],
                    hint="install the same rdrr on every machine of the cluster",
                ) from error
            raise
        except errors.RayError as error:
            raise WorkerError("a Ray worker was lost", found=error) from error


@contextmanager
def open_engine(workers: int, address: str | None = None) -> Iterator[RayEngine]:
    """Connect to a cluster, or start workers on this machine where none is named.

    Raises:
        UsageError: Ray is not installed.
        WorkerError: The cluster cannot be reached.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("`engine` ray needs Ray", hint="pip install 'rdrr[ray]'") from None
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, workers, address)
    try:
        yield RayEngine(ray)
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any, workers: int, address: str | None) -> None:
    # A cluster that is started here reports nothing to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = {"num_cpus": workers, "include_dashboard": False}
    try:
        if address is not None:
            _knock(address)
        ray.init(
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(here if address is None else {"address": address}),
        )
    except (ConnectionError, ValueError, OSError, RuntimeError) as error:
        raise WorkerError(
            "the Ray cluster cannot be reached",
            where=address,
            expected="HOST:PORT of a running cluster, or auto",
            found=error,
        ) from error


def _knock(address: str) -> None:
    """Fail at once where nobody listens: Ray itself tries for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()
