"""Packages that are installed on demand, and the one message for each that is missing.

`pip install rdrr` brings what converts safetensors and GGUF checkpoints, validates packages and
runs them on WebGPU. Everything else is an extra of `pyproject.toml`, and code that needs one asks
here before it imports it, so that a user reads one line and never a traceback.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rdrr_format.errors import UsageError


def install_hint(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'rdrr[{extra}]'"


def import_extra(module: str, extra: str, purpose: str, *, where: object = None) -> Any:
    """Import a package that an extra brings, and return it.

    Args:
        module: The package's name when it is imported.
        extra: The extra that installs it.
        purpose: What needs the package, as the subject of the message: "the CPU backend".
        where: File or URL that the message names.

    Raises:
        UsageError: The package is not installed, or it is installed and cannot be imported.
    """
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        raise UsageError(
            f"{purpose} needs the package {module}"
            + ("" if missing else ", which is installed but cannot be imported"),
            where=where,
            found=None if missing else error,
            hint=install_hint(extra),
        ) from None
