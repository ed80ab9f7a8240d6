"""The files of a checkpoint beside its weights: found, bounded and read.

Whatever is wrong with one is a `SourceError`, or a `StoreError` for a link out of the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rdrr_format.bounded_json import JsonBounds, parse_json
from rdrr_format.errors import FormatError, SourceError
from rdrr_format.file_names import check_link
from rdrr_format.regular_files import read_regular, regular_file

from rdrr_converter.checkpoint.pointers import pointer_hint

MAX_AUXILIARY_BYTES = 64 << 20
"""Largest size in bytes of a file beside the weights, such as a tokenizer or a configuration."""

CHECKPOINT_JSON = JsonBounds(size=64 << 20, values=1 << 22)
"""Limits of configurations, indices and tokenizers; the largest published ones reach half."""


def find_file(folder: Path, name: str, *, follow_links: bool) -> Path | None:
    """Return the path of a file of a checkpoint, or None if there is no such file.

    Args:
        folder: The folder of the checkpoint.
        name: Name of the file, or its path in the folder.
        follow_links: Whether the file may be a link that leads out of the folder. Weights always
            may, because folders that people assemble have links to them.

    Raises:
        SourceError: It is no regular file, but a pipe, a device or a folder for example.
        StoreError: It is a link that leads out of the folder.
    """
    path = folder / name
    try:
        file = regular_file(path)
        if file is not None and not follow_links:
            check_link(path, folder)
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error
    return file


def read_json_object(path: Path, bounds: JsonBounds = CHECKPOINT_JSON) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        SourceError: The file cannot be read, is not a JSON object, or exceeds a limit.
    """
    return parse_json_object(read_content(path, bounds.size), path, bounds)


def read_content(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file of at most `max_bytes` bytes.

    Raises:
        SourceError: The file cannot be read, is not a regular file, or is larger.
    """
    try:
        return read_regular(path, max_bytes)
    except FormatError as error:
        raise as_source_error(error, path) from error
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error


def parse_json_object(
    content: bytes, where: object, bounds: JsonBounds = CHECKPOINT_JSON
) -> dict[str, Any]:
    """Return the object in a JSON text.

    Raises:
        SourceError: The text is not a JSON object, or exceeds a limit.
    """
    try:
        value = parse_json(content, bounds)
    except FormatError as error:
        raise as_source_error(error, where, pointer_hint(content)) from error
    if not isinstance(value, dict):
        raise SourceError("not a JSON object", where=where, found=type(value).__name__)
    return value


def as_source_error(error: FormatError, where: object, hint: str | None = None) -> SourceError:
    """Convert an error of `rdrr_format` about a file of a checkpoint to a `SourceError`."""
    return SourceError(
        error.message, where=where, expected=error.expected, found=error.found, hint=hint
    )
