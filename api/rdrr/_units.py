"""Sizes in bytes as text: read what people write, and format sizes for people."""

from __future__ import annotations

import re

from rdrr_format.errors import UsageError

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


def parse_size(text: str) -> int:
    """Return the number of bytes that a text like `64MiB`, `1.5 GB` or `4096` stands for.

    Raises:
        UsageError: The text is not a positive size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    factor = _FACTORS.get(match[2]) if match else None
    size = int(float(match[1]) * factor) if match and factor else 0
    if size < 1:
        raise UsageError("not a size", expected="a size like 64MiB, 1GB or 4096", found=text)
    return size


def format_size(size: float) -> str:
    """Return a size in the binary unit that leaves one to four digits before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def spell_size(size: int) -> str:
    """Return a size as people write it in a command: `64MiB`, or `256` if no unit divides it."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
