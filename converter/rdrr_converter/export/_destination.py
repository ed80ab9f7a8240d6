"""What an export may replace: a checkpoint, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from rdrr_format.errors import StoreError
from rdrr_format.stores import store_errors

_CONFIG = "config.json"
_MAGIC = b"GGUF"


def check_replaceable(path: Path, package: Path | None, kind: str, *, overwrite: bool) -> None:
    """Refuse a destination that exists and may not be replaced.

    Args:
        path: The file or folder to create.
        package: Folder of the package; None if it is not on this machine.
        kind: Kind of the checkpoint, `safetensors` or `gguf`.
        overwrite: Whether an existing checkpoint may be replaced.

    Raises:
        StoreError: It exists, and `overwrite` is not given or it is no checkpoint.
    """
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise StoreError(
            "exists already", where=path, hint="choose another destination, or use `overwrite`"
        )
    if package is not None and package.resolve().is_relative_to(path.resolve()):
        raise StoreError("holds the package itself, so it is not replaced", where=path)
    is_checkpoint, described = _KINDS[kind]
    if path.is_symlink() or not is_checkpoint(path):
        raise StoreError(
            f"is not {described}, so it is not replaced",
            where=path,
            hint="choose another destination, or remove it yourself",
        )


def _is_folder(path: Path) -> bool:
    return path.is_dir() and ((path / _CONFIG).is_file() or not any(path.iterdir()))


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with store_errors(path), path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


_KINDS: Mapping[str, tuple[Callable[[Path], bool], str]] = MappingProxyType(
    {"gguf": (_is_gguf, "a GGUF file"), "safetensors": (_is_folder, "a folder with config.json")}
)
"""How a checkpoint of each kind is recognised, and what it is called."""
