"""The user's configuration file, `rdrr/config.toml`, which holds kernel hints for all runs.

    [kernel_hints]
    q4kMatmul = "fused_q4k"

It lies in $XDG_CONFIG_HOME, or in ~/.config if that variable is not set. It need not exist.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from rdrr_format.errors import UsageError


def configuration_path() -> Path:
    """Return the path of the configuration file, whether or not it exists."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "rdrr" / "config.toml"


def configured_hints() -> dict[str, str]:
    """Return the kernel hints of the user's configuration; none if there is no file.

    Raises:
        UsageError: The file is not TOML, or has an unknown hint.
    """
    from rdrr_manifests.models import parse_hint

    path = configuration_path()
    try:
        stated = tomllib.loads(path.read_text(encoding="utf-8")).get("kernel_hints", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise UsageError("the configuration cannot be read", where=str(path), found=cause) from None
    if not isinstance(stated, dict):
        raise UsageError("kernel_hints is not a table", where=str(path), expected="[kernel_hints]")
    try:
        return dict(parse_hint(f"{key}={value}") for key, value in stated.items())
    except UsageError as error:
        raise UsageError(
            error.message, where=str(path), expected=error.expected, found=error.found
        ) from None
