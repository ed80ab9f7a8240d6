"""The one rule for file names: a name is plain if it stays inside its folder on every system.

Manifests and indexes of checkpoints come from strangers, so each name that one states is checked
here before a file of that name is opened or written.
"""

from __future__ import annotations

from rdrr_format.errors import FormatError

EXPECTED = "a name without folders"
"""What messages say about the rule."""

_RESERVED = {"", ".", ".."}
_SEPARATORS = "/\\:"
_LONGEST = 255


def is_plain_name(name: str) -> bool:
    """Return whether a file name stays inside its folder on every system."""
    return (
        name not in _RESERVED
        and not name.startswith("~")
        and not any(char in name for char in _SEPARATORS)
        and name.isprintable()
        and name == name.strip()
        and len(name.encode()) <= _LONGEST  # file systems count bytes
    )


def check_name(name: str) -> str:
    """Return the name itself, if it is plain.

    Raises:
        FormatError: It is not.
    """
    if not is_plain_name(name):
        raise FormatError("not a plain file name", expected=EXPECTED, found=name)
    return name
