"""The rule for file names: a name is plain if it cannot lead out of its folder on any system.

Manifests and the indexes of checkpoints are untrusted, so every file name in them is checked here
before that file is opened or written.
"""

from __future__ import annotations

from rdrr_format.errors import FormatError

EXPECTED = "a name without folders"
"""How error messages describe a plain name."""

_RESERVED = {"", ".", ".."}
_SEPARATORS = "/\\:"
_MAX_BYTES = 255


def is_plain_name(name: str) -> bool:
    """Return whether a file name cannot lead out of its folder on any system."""
    return (
        name not in _RESERVED
        and not name.startswith("~")
        and not any(char in name for char in _SEPARATORS)
        and name.isprintable()
        and name == name.strip()
        and len(name.encode()) <= _MAX_BYTES  # file systems limit bytes, not characters
    )


def check_name(name: str) -> str:
    """Return a name unchanged if it is plain.

    Raises:
        FormatError: The name is not plain.
    """
    if not is_plain_name(name):
        raise FormatError("not a plain file name", expected=EXPECTED, found=name)
    return name
