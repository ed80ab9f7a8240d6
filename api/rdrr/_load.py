"""Load a package: open it, choose its backend, and decide how much context it gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from rdrr_format.errors import UsageError
from rdrr_format.misuse import explained
from rdrr_format.options import fill

from rdrr._backends import open_backend, resolve_hints
from rdrr._load_options import DEFAULT_CONTEXT, LoadKeywords, LoadOptions
from rdrr._model import Model
from rdrr._opening import opening_device

if TYPE_CHECKING:
    from rdrr_manifests.package import Package


@explained
def load(
    path: str | Path, *, options: LoadOptions | None = None, **keywords: Unpack[LoadKeywords]
) -> Model:
    """Load a package for generation.

    Args:
        path: Folder or URL of the package.
        options: The options of loading.
        keywords: Fields of `LoadOptions`, in place of `options`.

    Raises:
        StoreError: There is no package at `path`.
        ManifestError: The manifest has faults.
        ShardError: Bytes are missing, or the hash of a shard differs from the one in the manifest.
        DeviceError: There is no adapter or too little memory, or a hint cannot be honoured.
        UsageError: An option is wrong.
    """
    chosen = fill(LoadOptions, options, keywords, parameter="options")
    with opening_device(chosen) as opening:
        from rdrr_manifests.package import open_package

        package = open_package(path, follow_links=chosen.follow_links)
        slots = context_of(package, chosen.context)
        hints = resolve_hints(package, chosen.kernel_hints, chosen.rounded_weights)
        opened = open_backend(package, hints, chosen, context=slots, opening=opening)
    return Model(package, opened, chosen)


def context_of(package: Package, asked: int | None) -> int:
    """Return the number of slots of the key-value cache.

    Args:
        package: The package.
        asked: The number that was asked for; None for the context length of the model, but at most
            `DEFAULT_CONTEXT`.

    Raises:
        UsageError: `asked` is not positive, or larger than the context length of the model.
    """
    longest = package.manifest.architecture.max_seq_len
    if asked is not None and not 0 < asked <= longest:
        raise UsageError(
            "`context` is out of range",
            expected=f"1 to {longest}, the context length of the model",
            found=asked,
        )
    return asked or min(longest, DEFAULT_CONTEXT)
