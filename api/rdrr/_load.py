"""From a path to a model: the package, the backend that runs it, and how much context it gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from rdrr_format.errors import UsageError
from rdrr_format.options import fill

from rdrr._backends import open_backend, resolve_hints
from rdrr._load_options import DEFAULT_CONTEXT, LoadKeywords, LoadOptions
from rdrr._model import Model

if TYPE_CHECKING:
    from rdrr_manifests.package import Package


def load(
    path: str | Path, *, options: LoadOptions | None = None, **keywords: Unpack[LoadKeywords]
) -> Model:
    """Load a package for generation.

    Args:
        path: A package's folder or URL.
        options: How it is loaded.
        keywords: Fields of `LoadOptions`, in place of `options`.

    Raises:
        StoreError: There is no package at `path`.
        ManifestError: The manifest is not sound.
        ShardError: Bytes are missing, or a shard has another hash than the manifest states.
        DeviceError: No adapter, too little memory, or a hint that cannot be honoured.
        UsageError: An option is wrong.
    """
    from rdrr_manifests.package import open_package

    chosen = fill(LoadOptions, options, keywords, parameter="options")
    package = open_package(path, follow_links=chosen.follow_links)
    slots = context_of(package, chosen.context)
    hints = resolve_hints(package, chosen.kernel_hints)
    opened = open_backend(package, hints, chosen, context=slots)
    return Model(package, opened, chosen)


def context_of(package: Package, asked: int | None) -> int:
    """KV slots: those asked for, or the model's own up to `DEFAULT_CONTEXT`.

    Raises:
        UsageError: More than the model was made for, or none.
    """
    longest = package.manifest.architecture.max_seq_len
    if asked is not None and not 0 < asked <= longest:
        raise UsageError(
            "context out of range", expected=f"1 to {longest}, the model's own", found=asked
        )
    return asked or min(longest, DEFAULT_CONTEXT)
