"""The packages that a server is started with, as a pool that loads them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.errors import RdrrError, UsageError

from rdrr.serve.metrics import Metrics
from rdrr.serve.pool import Offer, Pool
from rdrr.serve.remote_images import Network
from rdrr.serve.texts import Service
from rdrr.serve.worker import Worker

if TYPE_CHECKING:
    from rdrr._load_options import LoadOptions
    from rdrr._model import Model


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How a server serves its packages.

    Attributes:
        slots: Texts of a package that share passes; the others wait.
        queue: Texts that may wait.
        aliases: Further names of the model, for a server of one package.
        template: Chat template in place of the package's, or its name.
        timeout: Most seconds of a request; None for no limit.
        idle_unload: Seconds after which an unused package is unloaded; None for never.
        allow_remote_images: Whether images that requests name by a URL are fetched.
    """

    slots: int = 4
    queue: int = 64
    aliases: tuple[str, ...] = ()
    template: str | None = None
    timeout: float | None = None
    idle_unload: float | None = None
    allow_remote_images: bool = False


def pool_of_packages(paths: Sequence[str], load: LoadOptions, options: ServeOptions) -> Pool:
    """Return a pool of packages, none of which is loaded yet.

    Args:
        paths: The packages; a request without a name means the first one.
        load: How they are loaded; its memory limit holds for all together.
        options: How they are served.

    Raises:
        UsageError: There is an alias, and more than one package.
        RdrrError: One of them is no package.
    """
    if options.aliases and len(paths) > 1:
        raise UsageError("an alias needs a server of one package", found=options.aliases[0])
    metrics, started = Metrics(), int(time.time())
    offers = [_offer(path, load, options, metrics, started) for path in paths]
    return Pool(offers, metrics, started, max_vram=load.max_vram, idle_unload=options.idle_unload)


def _offer(
    path: str, load: LoadOptions, options: ServeOptions, metrics: Metrics, started: int
) -> Offer:
    import rdrr

    package = rdrr.open_package(path, follow_links=load.follow_links)
    manifest, folder = package.manifest, package.where
    name = manifest.model_id

    def start(room: int | None) -> Service:
        how = load if room is None else replace(load, max_vram=room)

        # Clients read what errors say: they learn the name, and not where the server has files.
        def loaded() -> Model:
            try:
                model = rdrr.load(path, options=how)
            except RdrrError as error:
                _rename(error, str(folder), name)
                raise
            model.package.where = name
            return model

        worker = Worker(loaded, slots=options.slots, queue=options.queue)
        worker.start()
        network = Network() if options.allow_remote_images else None
        return Service(
            worker,
            name,
            options.aliases,
            metrics,
            started,
            options.template,
            options.timeout,
            network,
        )

    return Offer(name, options.aliases, manifest, start)


def _rename(error: RdrrError, folder: str, name: str) -> None:
    """Replace the path of a folder in the facts of an error, but no word that is the same."""
    path = re.compile(rf"(?<![\w./\\-]){re.escape(folder)}(?=[/\\`'\":]|$)")
    for part in ("where", "expected", "found", "hint"):
        text = getattr(error, part)
        if text is not None:
            setattr(error, part, path.sub(lambda _: name, text))
    error.args = (error.line(),)


def key_in(path: Path) -> str:
    """Return the key that a file holds.

    Raises:
        UsageError: It cannot be read, or is empty.
    """
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the key cannot be read", where=path, found=error) from error
    if not key:
        raise UsageError("the file has no key", where=path)
    return key
