"""The setting for compressed shards: what the option `compress` of a conversion can ask for.

`rdrr_format.frame_writer` writes the frames and `rdrr_format.decompression` reads them. This module
imports nothing heavy, because the command line needs it to declare the option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rdrr_format.errors import UsageError

ZSTD = "zstd"
LEVELS = range(1, 23)
"""Compression levels of Zstandard; its own tool asks for `--ultra` from 20 on."""

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
    """Parse `zstd` or `zstd:LEVEL`, for example `zstd:19`.

    Raises:
        UsageError: The method is not zstd, or the level is not one of `LEVELS`.
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
