"""From a path to a model: the package, the backend that runs it, and how much context it gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.errors import UsageError

from rdrr._backends import open_backend, resolve_hints
from rdrr._model import Model

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

DEFAULT_CONTEXT = 8192
"""Most KV slots that are allocated unless more are asked for."""


def load(
    path: str | Path,
    *,
    backend: str = "auto",
    adapter: str | None = None,
    kernel_hints: Mapping[str, str] | None = None,
    strict_hints: bool = False,
    kv_dtype: str = "f16",
    context: int | None = None,
) -> Model:
    """Load a package for generation.

    Args:
        path: A package's folder or URL.
        backend: `wgpu`, `cpu` (torch), or `auto`: wgpu where there is an adapter, else cpu.
        adapter: Part of an adapter's name; the best one when None.
        kernel_hints: Hints for this run, before those of the user's configuration
            (`rdrr/config.toml`, table `kernel_hints`) and of the manifest.
        strict_hints: A hint that cannot be honoured is an error.
        kv_dtype: Storage of the key-value cache on the GPU, `f16`, `f32` or `q8_0`.
        context: Tokens of prompt and text together; at most 8192 of the model's own by default.

    Raises:
        StoreError: There is no package at `path`.
        ManifestError: The manifest is not sound.
        ShardError: Bytes are missing.
        DeviceError: No adapter, too little memory, or a hint that cannot be honoured.
        UsageError: An option is wrong.
    """
    from rdrr_manifests.package import open_package

    package = open_package(path)
    slots = context_of(package, context)
    choice = open_backend(
        package,
        resolve_hints(package, kernel_hints or {}),
        backend=backend,
        adapter=adapter,
        strict_hints=strict_hints,
        kv_dtype=kv_dtype,
        context=slots,
    )
    return Model(package, choice)


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
