"""The readback interval: how many tokens the host reads back from the device at a time.

Each readback costs the host a wait, so a fast device is read every few tokens. On a slow device the
text would then come in bursts. With the interval `auto` the number follows the measured speed.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from rdrr_format.errors import UsageError
from rdrr_format.options import MAX_COUNT, check_count, shown

Interval: TypeAlias = int | Literal["auto"]
"""A fixed number of tokens, or `auto`."""

AUTO: Final = "auto"

MOST_TOKENS = 8
"""Largest automatic interval; reading less often makes decoding hardly any faster."""

TARGET_SECONDS = 0.05
"""Time between two automatic readbacks that still reads as steady text."""


class ReadbackInterval:
    """The number of tokens to read back next.

    An automatic interval begins at 1. After each readback it becomes the number of tokens that take
    `TARGET_SECONDS` at the speed just measured, from 1 to `MOST_TOKENS`. It at most doubles each
    time, since one reading that is too fast must not lead to a long wait.

    Args:
        interval: A fixed number of tokens, or `auto`.

    Attributes:
        tokens: Tokens of the next interval.
    """

    def __init__(self, interval: Interval) -> None:
        self._is_fixed = interval != AUTO
        self.tokens = 1 if interval == AUTO else interval

    def observe(self, tokens: int, seconds: float) -> None:
        """Adapt an automatic interval to the speed of the interval that was read last.

        Args:
            tokens: Tokens that were read, at least 1.
            seconds: Time that the host submitted passes and waited for them, without the time that
                the receiver of the text took.
        """
        if self._is_fixed:
            return
        # The lower bound keeps a division by 0 out: ids may have been ready before the host asked.
        seconds_per_token = max(seconds / tokens, TARGET_SECONDS / MOST_TOKENS)
        affordable = int(TARGET_SECONDS / seconds_per_token)
        self.tokens = max(1, min(affordable, 2 * self.tokens))


def check_interval(interval: Any, name: str = "interval") -> None:
    """Check the value of an interval.

    Args:
        interval: The value.
        name: What messages call it.

    Raises:
        UsageError: It is neither `auto` nor a whole number from 1 on.
    """
    if not isinstance(interval, str):
        check_count(name, interval)
    elif interval != AUTO:
        raise UsageError(
            f"{name} is neither auto nor a whole number",
            expected=f"auto, or 1 to {MAX_COUNT}",
            found=shown(interval),
        )
