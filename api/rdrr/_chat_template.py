"""Find and read the chat template of a package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import FormatError, ManifestError
from rdrr_format.tokenizer_settings import (
    SETTINGS,
    SPECIAL,
    merged_settings,
    named_templates,
    named_tokens,
)

from rdrr._texts import read_text

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.text.chat_template import ChatTemplate

_FILE = "chat_template.jinja"
_MAX_FILE_SIZE = 64 << 20
"""Largest size in bytes of a file that holds a template or settings."""


def open_template(
    package: Package, *, file: str | Path | None = None, tools: bool = False
) -> ChatTemplate:
    """Return the chat template of a file or of a package.

    A package has it in `chat_template.jinja`, or else in `tokenizer_config.json`.

    Args:
        package: The package.
        file: File of a template that replaces the package's own, or the name of a template if the
            package has several.
        tools: Prefer the template for tools if the package has several with names.

    Raises:
        ManifestError: There is no template, or the text is not a template.
        StoreError: The file cannot be read.
    """
    from rdrr_runtime.text.chat_template import ChatTemplate

    settings = _object(package, SETTINGS)
    templates = named_templates(settings.get("chat_template"))
    source, where = None if file is None else templates.get(str(file)), SETTINGS
    if file is None and package.store.exists(_FILE):
        source, where = _text(package, _FILE), _FILE
    elif file is None:
        source = _chosen(package, templates, tools=tools)
    elif source is None:
        source, where = read_text(file), str(file)
    tokens = named_tokens(merged_settings(settings, _object(package, SPECIAL)))
    stated = settings.get("chat_control_tokens")
    control = [str(text) for text in stated] if isinstance(stated, list) else None
    return ChatTemplate(source, tokens, where=where, control_tokens=control)


def _chosen(package: Package, templates: Mapping[str, str], *, tools: bool) -> str:
    source = (templates.get("tool_use") if tools else None) or templates.get("default")
    if source is not None:
        return source
    raise ManifestError(
        "the package has no chat template" + (" called default" if templates else ""),
        where=package.where,
        found=", ".join(templates) or None,
        hint="give a file that has one, or the name of one that the package has, as `template`",
    )


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
