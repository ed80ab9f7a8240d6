"""Sizes in bytes as text for people; `rdrr_format.options` reads what people write."""

from __future__ import annotations


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
