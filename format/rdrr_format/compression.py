"""How shards may be compressed: what `--compress` can ask for.

The frames are written by `rdrr_format.frame_writer` and read by `rdrr_format.decompression`. This
module imports nothing heavy, since the options of a conversion need it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rdrr_format.errors import UsageError

ZSTD = "zstd"
LEVELS = range(1, 23)
"""Levels of Zstandard; from 20 on it is slow even by its own measure."""

_DEFAULT_LEVEL = 3


@dataclass(frozen=True)
class Compression:
    """How shards are compressed.

    Attributes:
        level: One of `LEVELS`.
    """

    level: int = _DEFAULT_LEVEL

    def __str__(self) -> str:
        return f"{ZSTD}:{self.level}"


def parse_compression(text: str) -> Compression:
    """What `zstd` or `zstd:19` asks for.

    Raises:
        UsageError: Another method, or a level that it does not have.
    """
    match = re.fullmatch(rf"{ZSTD}(?::(\d{{1,3}}))?", text)
    level = int(match[1] or _DEFAULT_LEVEL) if match else 0
    if level not in LEVELS:
        raise UsageError(
            "`compress` has no such value",
            expected=f"{ZSTD} or {ZSTD}:{LEVELS[0]} to {ZSTD}:{LEVELS[-1]}",
            found=text,
        )
    return Compression(level)
