"""Packages that are installed on demand, and the one message for each that is missing.

`pip install rdrr` brings what converts safetensors and GGUF checkpoints, validates packages and
runs them on WebGPU. Everything else is an extra of `pyproject.toml`, and code that needs one asks
here before it imports it, so that a user reads one line and never a traceback. The line installs
the packages of the extra: that works wherever rdrr was installed from, a clone and a wheel too.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import UsageError

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "torch": ("torch>=2.6",),
        "remote": ("fsspec[http]", "s3fs", "gcsfs"),
        "http": ("fsspec[http]",),
        "s3": ("s3fs",),
        "gs": ("gcsfs",),
        "ray": ("ray>=2.40",),
        "grammar": ("llguidance>=1.9,<2",),
        "dawn": ("wgpudawn==0.32.0.4",),
        "lm-eval": ("lm-eval>=0.4.10",),
        "serve": ("starlette>=0.47", "uvicorn>=0.34", "prometheus_client>=0.21"),
        "serve-ray": (
            "ray[serve]>=2.60",
            "starlette>=0.47",
            "uvicorn>=0.34",
            "prometheus_client>=0.21",
        ),
        "images": ("pillow>=12",),
        "parquet": ("pyarrow>=15",),
    }
)
"""The packages of each extra, as `pyproject.toml` states them; a clone has no metadata to ask."""


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an extra."""
    return "pip install " + shlex.join(EXTRAS[extra])


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
