"""Find and read the chat template of a package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import FormatError, ManifestError

from rdrr._texts import read_text

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.text.chat_template import ChatTemplate

_FILE, _SETTINGS, _SPECIAL = (
    "chat_template.jinja",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_MAX_FILE_SIZE = 64 << 20
"""Largest size in bytes of a file that holds a template or settings."""

_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def open_template(
    package: Package, *, file: str | Path | None = None, tools: bool = False
) -> ChatTemplate:
    """Return the chat template of a file or of a package.

    A package has it in `chat_template.jinja`, or else in `tokenizer_config.json`.

    Args:
        package: The package.
        file: File of a template that replaces the package's own.
        tools: Prefer the template for tools if the package has several with names.

    Raises:
        ManifestError: There is no template, or the text is not a template.
        StoreError: The file cannot be read.
    """
    from rdrr_runtime.text.chat_template import ChatTemplate

    settings = _object(package, _SETTINGS)
    if file is not None:
        source, where = read_text(file), str(file)
    elif package.store.exists(_FILE):
        source, where = _text(package, _FILE), _FILE
    else:
        source, where = _stated(package, settings.get("chat_template"), tools=tools), _SETTINGS
    return ChatTemplate(source, _tokens({**_object(package, _SPECIAL), **settings}), where=where)


def _stated(package: Package, stated: Any, *, tools: bool) -> str:
    if isinstance(stated, list):
        named = {
            entry["name"]: entry.get("template")
            for entry in stated
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }
        stated = (named.get("tool_use") if tools else None) or named.get("default")
    if isinstance(stated, str):
        return stated
    raise ManifestError(
        "the package has no chat template",
        where=package.where,
        hint="give a file that has one as `template`",
    )


def _tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of the special tokens; settings hold a text, or an object with `content`."""
    tokens: dict[str, Any] = {}
    for name in _TOKENS:
        value = settings.get(f"{name}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[f"{name}_token"] = text
    return tokens


def _object(package: Package, name: str) -> dict[str, Any]:
    if not package.store.exists(name):
        return {}
    from rdrr_format.bounded_json import JsonBounds, parse_json

    bounds = JsonBounds(size=2 * _MAX_FILE_SIZE, values=1 << 22)
    try:
        value = parse_json(_text(package, name).encode(), bounds)
    except FormatError as error:
        raise ManifestError(
            error.message, where=name, expected=error.expected, found=error.found
        ) from error
    return value if isinstance(value, dict) else {}


def _text(package: Package, name: str) -> str:
    from rdrr_format.stores import read_bounded

    return read_bounded(package.store, name, _MAX_FILE_SIZE).decode("utf-8", errors="replace")
