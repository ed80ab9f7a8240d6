"""The workers of a Ray cluster, which read the source themselves.

Only the description of the work goes to a worker (`SourceTensor`s say where their values are, not
what they are), and only encoded bytes come back. The checkpoint must therefore be found under the
same path on every machine, and this package be installed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rdrr_format.errors import ConversionError, RdrrError, UsageError

from rdrr_converter.engines._base import Item, Result, in_order

AHEAD = 4
"""Items under way for each processor of the cluster; a round trip takes longer than in a thread."""


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
            ConversionError: A worker was lost, and so were those that took its place.
        """
        remote = self._ray.remote(function)
        return in_order(items, remote.remote, self._result, self._limit)

    def _result(self, ticket: Any) -> Any:
        try:
            return self._ray.get(ticket)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RdrrError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise ConversionError("a Ray worker was lost", found=error) from error


@contextmanager
def open_engine(workers: int, address: str | None = None) -> Iterator[RayEngine]:
    """Connect to a cluster, or start workers on this machine where none is named.

    Raises:
        UsageError: Ray is not installed.
        ConversionError: The cluster cannot be reached.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray", hint="pip install 'rdrr[ray]'") from None
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, workers, address)
    try:
        yield RayEngine(ray)
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any, workers: int, address: str | None) -> None:
    options: dict[str, Any] = {"address": address} if address else {"num_cpus": workers}
    try:
        ray.init(log_to_driver=False, include_dashboard=False, **options)
    except (ConnectionError, ValueError, OSError, RuntimeError) as error:
        raise ConversionError(
            "the Ray cluster cannot be reached", where=address, found=error
        ) from error
