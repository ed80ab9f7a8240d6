"""The suite without the user's settings: what tests see does not depend on whose machine it is.

Drivers go on keeping compiled shaders where the user has them: those are the same for everybody.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

CLIENTS = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_")
"""What variables begin with that steer the hub's client and what is built on it."""

SHADERS = ("MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
"""Variables that tell drivers where compiled shaders are; without them it is the user's cache."""

OURS = ("SOURCE_DATE_EPOCH",)
"""Variables that rdrr reads."""


def isolate(environment: MutableMapping[str, str], home: str) -> None:
    """Take away the variables of the user that decide what rdrr and its clients do.

    Args:
        environment: Of the process, before any client was imported.
        home: A folder that need not exist, in the place of the user's configuration, cache, and
            cache of the hub.
    """
    for name in [one for one in environment if one.startswith(CLIENTS) or one in OURS]:
        del environment[name]
    cache = environment.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    for name in SHADERS:
        environment.setdefault(name, cache)
    environment["XDG_CACHE_HOME"] = f"{home}/cache"
    environment["XDG_CONFIG_HOME"] = f"{home}/config"
    environment["HF_HOME"] = f"{home}/hub"
