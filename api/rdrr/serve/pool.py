"""The packages of a server: loaded when a request asks for them, unloaded when others need room.

The memory limit holds for all together. A package that does not fit takes the place of the one that
was used longest ago and works for nobody; one that works is never unloaded.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError, UsageError
from starlette.concurrency import run_in_threadpool

from rdrr._units import format_size
from rdrr.serve.worker import BusyError

if TYPE_CHECKING:
    from rdrr_manifests.models import Manifest

    from rdrr.serve.metrics import Metrics
    from rdrr.serve.texts import Service

UNKNOWN_MODEL = "this model is not served"
NEVER_FITS = "the model alone takes more GPU memory than `max_vram` allows"
UNLOAD_SECONDS = 5.0


@dataclass(eq=False)
class Offer:
    """A package that is served.

    Attributes:
        name: Name of the model.
        aliases: Further names that requests may use.
        manifest: Its manifest.
        open: Loads it; the argument is the largest number of bytes of memory, None for no limit.
        service: What the routes need; None while it is not loaded.
        users: Requests that have it now.
        used: When a request had it last, in seconds.
    """

    name: str
    aliases: tuple[str, ...]
    manifest: Manifest
    open: Callable[[int | None], Service]
    service: Service | None = None
    users: int = 0
    used: float = 0.0

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest, which names the package's content."""
        return sha256(self.manifest.model_dump_json(by_alias=True).encode()).hexdigest()

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded and works for nobody."""
        return self.service is not None and not self.users and not self.service.worker.jobs


class Pool:
    """The packages of a server.

    Args:
        offers: The packages; a request without a name means the first one.
        metrics: What is counted.
        started: When the server started, in seconds.
        max_vram: Most bytes of GPU memory that they take together; None for no limit.
        idle_unload: Seconds after which a package that nobody uses is unloaded; None for never.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        metrics: Metrics,
        started: int,
        *,
        max_vram: int | None = None,
        idle_unload: float | None = None,
    ) -> None:
        self.offers, self.metrics, self.started = [*offers], metrics, started
        self._max, self._idle = max_vram, idle_unload
        self._changing = threading.Lock()  # held while a package is loaded or unloaded
        self._using = threading.Lock()  # held for moments: who uses a package
        self._stopped = threading.Event()
        if idle_unload is not None:
            threading.Thread(target=self._watch, name="rdrr-idle", daemon=True).start()

    @property
    def loaded(self) -> list[Service]:
        """The services whose packages are loaded."""
        return [offer.service for offer in self.offers if offer.service is not None]

    @property
    def names(self) -> list[str]:
        """All names that requests may use."""
        return [name for offer in self.offers for name in (offer.name, *offer.aliases)]

    @asynccontextmanager
    async def lend(self, name: str | None = None) -> AsyncIterator[Service]:
        """Give a service to a request, and load its package if need be.

        Raises:
            UsageError: No package has this name.
            BusyError: Those that are loaded work, and there is no room beside them.
            RdrrError: The package cannot be loaded.
        """
        offer = self.offer(name)
        with self._using:
            offer.users += 1
        try:
            service = offer.service
            yield service if service is not None else await run_in_threadpool(self.load, offer)
        finally:
            with self._using:
                offer.users -= 1
                offer.used = monotonic()

    def offer(self, name: str | None) -> Offer:
        """Return the package of a name; the first one for None.

        Raises:
            UsageError: There is none.
        """
        if name is None:
            return self.offers[0]
        for offer in self.offers:
            # Ollama's clients add the tag that they take for granted.
            if name.removesuffix(":latest") in (offer.name, *offer.aliases):
                return offer
        raise UsageError(UNKNOWN_MODEL, expected=" or ".join(self.names), found=name)

    def load(self, offer: Offer) -> Service:
        """Load a package, and unload others that it needs the room of.

        Raises:
            BusyError: They work.
            RdrrError: It cannot be loaded; the message is `NEVER_FITS` if there is no room for it
                even without the others.
        """
        with self._changing:
            while offer.service is None:
                try:
                    offer.service = offer.open(self._room())
                except DeviceError as error:
                    if "max_vram" not in error.message:
                        raise
                    self._refuse_beyond_limit(offer, error)
                    self._make_room()
            service = offer.service
        assert service is not None
        return service

    def unload(self, offer: Offer) -> bool:
        """Unload a package unless it works, and say whether it is unloaded."""
        with self._changing:
            self._unload(offer)
            return offer.service is None

    def close(self, patience: float = UNLOAD_SECONDS) -> None:
        """Unload all packages, after their texts have ended or patience has.

        Args:
            patience: Seconds to wait for each.
        """
        self._stopped.set()
        for service in self.loaded:
            service.worker.stop(patience)

    def _room(self) -> int | None:
        if self._max is None:
            return None
        return max(1, self._max - sum(service.worker.memory for service in self.loaded))

    def _refuse_beyond_limit(self, offer: Offer, error: DeviceError) -> None:
        """Refuse a package for which no room can be made, before others are unloaded for it."""
        assert self._max is not None
        if error.need > self._max or not self.loaded:
            most = f"at most {format_size(self._max)}"
            raise DeviceError(
                NEVER_FITS, where=offer.name, expected=most, found=error.found, hint=error.hint
            ) from error

    def _make_room(self) -> None:
        others = [offer for offer in self.offers if offer.service is not None]
        for offer in sorted(others, key=lambda offer: offer.used):
            if self._unload(offer):
                return
        raise BusyError("the other packages work, so there is no room for this one")

    def _unload(self, offer: Offer) -> bool:
        with self._using:
            service = offer.service if offer.is_idle else None
            if service is not None:
                offer.service = None
        if service is None:
            return False
        service.worker.stop(UNLOAD_SECONDS)
        return True

    def _watch(self) -> None:
        """Unload packages that nobody has used for long."""
        assert self._idle is not None
        while not self._stopped.wait(self._idle / 4):
            for offer in self.offers:
                if offer.is_idle and monotonic() - offer.used > self._idle:
                    self.unload(offer)


def pool_of(service: Service) -> Pool:
    """Return the pool of one package that is loaded already."""

    def opened(_: int | None) -> Service:
        return service

    manifest = service.model.package.manifest
    offer = Offer(service.name, service.aliases, manifest, opened, service)
    return Pool([offer], service.metrics, service.started)
