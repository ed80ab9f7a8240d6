"""The engine of a Ray cluster, whose workers read the source themselves.

A worker receives only a description of the work, since a `SourceTensor` says where its values are,
and returns only encoded bytes. Every machine of the cluster must therefore have the checkpoint
under the same path, and rdrr installed.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rdrr_format.errors import RdrrError
from rdrr_format.extras import import_extra

from rdrr_converter.engines._base import Item, Result, WorkerError, map_in_order

ITEMS_PER_WORKER = 4
"""Items in flight per CPU of the cluster; more than with threads, as a round trip takes longer."""

CONNECT_SECONDS = 10


class RayEngine:
    """An engine on the workers of the connected cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._limit = ITEMS_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """See `Engine.map`.

        Raises:
            RdrrError: The error that the function raised on the worker.
            WorkerError: A worker was lost, and so were its replacements.
        """
        remote = self._ray.remote(function)
        return map_in_order(items, remote.remote, self._result, self._limit)

    def _result(self, handle: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
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
    """Connect to a cluster, or start workers on this machine if no address is given.

    Raises:
        UsageError: Ray is not installed.
        WorkerError: The cluster cannot be reached.
    """
    ray = import_extra("ray", "ray", "the Ray engine")
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, workers, address)
    try:
        yield RayEngine(ray)
    finally:
        if is_ours:
            ray.shutdown()


def _connect(ray: Any, workers: int, address: str | None) -> None:
    # A cluster that is started here must not send usage statistics.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local = {"num_cpus": workers, "include_dashboard": False}
    try:
        if address is not None:
            _check_reachable(address)
        ray.init(
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(local if address is None else {"address": address}),
        )
    except (ConnectionError, ValueError, OSError, RuntimeError) as error:
        raise WorkerError(
            "the Ray cluster cannot be reached",
            where=address,
            expected="HOST:PORT of a running cluster, or auto",
            found=error,
        ) from error


def _check_reachable(address: str) -> None:
    """Fail at once if nothing listens at the address, where Ray itself would retry for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
