"""Changes to the JSON of a manifest, for tests of single faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Q0 = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
EMBED = "model.embed_tokens.weight"


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets `a.b[0].c`; the name of a tensor is enclosed in slashes."""

    def change(manifest: dict[str, Any]) -> None:
        *parents, last = _steps(path)
        target: Any = manifest
        for step in parents:
            target = target[step]
        target[last] = value

    return change


def drop(path: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        *parents, last = _steps(path)
        target: Any = manifest
        for step in parents:
            target = target[step]
        del target[last]

    return change


def _steps(path: str) -> list[Any]:
    matches = re.findall(r"/([^/]+)/|\[(\d+)\]|([^./\[\]]+)", path)
    return [name or (int(index) if index else key) for name, index, key in matches]


def both(*changes: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for change in changes:
            change(manifest)

    return change


def copy_entry(source: str, target: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that adds a second tensor with the bytes of another."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"][target] = dict(manifest["tensors"][source])

    return change


def rename(source: str, target: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"][target] = manifest["tensors"].pop(source)

    return change


def foreign(manifest: dict[str, Any]) -> None:
    """Change the manifest so that it seems to come from another writer."""
    manifest["conversion"] = None


def scaling(**fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["inference"]["rope"].update(fields)

    return change
