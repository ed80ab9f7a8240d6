"""The suite without the user's settings: what tests see does not depend on whose machine it is.

Caches stay where they are: compiled code and shaders are the same for everybody.
"""

from __future__ import annotations

from collections.abc import MutableMapping

CLIENTS = ("HF_", "HUGGINGFACE_", "HUGGING_FACE_", "TRANSFORMERS_")
"""What variables begin with that steer the hub's client and what is built on it."""

OURS = ("SOURCE_DATE_EPOCH",)
"""Variables that rdrr reads."""


def isolate(environment: MutableMapping[str, str], home: str) -> None:
    """Take away the variables of the user that decide what rdrr and its clients do.

    Args:
        environment: Of the process, before any client was imported.
        home: A folder that need not exist, in the place of the user's configuration and cache of
            the hub.
    """
    for name in [one for one in environment if one.startswith(CLIENTS) or one in OURS]:
        del environment[name]
    environment["XDG_CONFIG_HOME"] = f"{home}/config"
    environment["HF_HOME"] = f"{home}/hub"
