"""Short names of repositories on the Hugging Face Hub: `org/name[@revision]` without `hf://`.

A path of this machine always comes first: the short form is only tried where nothing has that name.
Nothing is opened here, and no network is used.
"""

from __future__ import annotations

import os

from rdrr_format.errors import UsageError
from rdrr_format.locations import HUB, parse_hub

_FILE_ENDINGS = (".json", ".gguf", ".safetensors", ".bin", ".pt", ".pth")
"""Endings of files: who types `out/model.gguf` means a file of this machine."""


def hub_location(text: str) -> str | None:
    """Return the `hf://` location that a short name stands for.

    Args:
        text: What the user typed for a package or a checkpoint.

    Returns:
        `hf://org/name[@revision]`, or None where something on this machine has this name, or where
        the text has another form.
    """
    if text.count("/") != 1 or text.startswith(("~", ".")) or text.endswith(_FILE_ENDINGS):
        return None
    try:
        parse_hub(HUB + text)
        is_here = os.path.lexists(text)
    except (UsageError, ValueError):
        return None
    return None if is_here or text.endswith("/") else HUB + text
