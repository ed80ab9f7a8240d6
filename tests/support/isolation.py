"""Isolate the suite from the user's settings, so that results do not depend on the machine.

Drivers still use the user's cache of compiled shaders, which are the same for everybody.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

CLIENTS = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_")
"""Prefixes of the variables that configure the hub's client and libraries built on it."""

SHADERS = ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
"""Variables that tell drivers where to cache shaders; the default is in the user's folder."""

OURS = ("SOURCE_DATE_EPOCH",)
"""Variables that rdrr reads."""


def isolate(environment: MutableMapping[str, str], home: str) -> None:
    """Remove the user's environment variables that change what rdrr and its clients do.

    Args:
        environment: Environment of the process, before any client library is imported.
        home: A folder, which need not exist, that replaces the user's configuration, cache and hub
            cache.
    """
    for name in [
        variable for variable in environment if variable.startswith(CLIENTS) or variable in OURS
    ]:
        del environment[name]
    cache = environment.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    for name in SHADERS:
        environment.setdefault(name, cache)
    environment["XDG_CACHE_HOME"] = f"{home}/cache"
    environment["XDG_CONFIG_HOME"] = f"{home}/config"
    environment["HF_HOME"] = f"{home}/hub"
