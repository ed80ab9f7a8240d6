"""The interface of devices that encode blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Weights = npt.NDArray[Any]
"""Blocks [n, 256] in float32, or in bfloat16 stored as uint16."""

BLOCK = 256
"""Number of weights in a block of the types that devices encode."""


class BlockDevice(Protocol):
    """A device that encodes blocks like the codecs do with quality `ref` and no importance.

    Attributes:
        name: Name of the device for people.
        types: Names of the storage types that it encodes.
        capacity: Maximum number of blocks in one call.
    """

    @property
    def name(self) -> str: ...
    @property
    def types(self) -> frozenset[str]: ...
    @property
    def capacity(self) -> int: ...

    def encode(self, dtype: str, parts: Sequence[Weights]) -> tuple[Bytes, Flags]:
        """Encode at most `capacity` blocks.

        Args:
            dtype: One of `types`.
            parts: Consecutive blocks, all float32 or all bfloat16.

        Returns:
            The encoded blocks, uint8 [n, bytes of a block], and fallback flags [n]. A flagged
            block must be encoded by the CPU, because its values are outside the range for which
            the device reproduces the CPU's bits, or outside the range of the type.

        Raises:
            DeviceError: The device fails.
        """

    def close(self) -> None:
        """Release the device."""


@contextmanager
def device_errors(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn exceptions of these kinds into a `DeviceError` with the first line of their message."""
    try:
        yield
    except kinds as error:
        message = str(error).strip().partition("\n")[0]
        raise DeviceError(f"{what} failed", found=message or type(error).__name__) from error


def portions(parts: Sequence[Weights], capacity: int) -> Iterator[list[Weights]]:
    """Yield the blocks of `parts`, in order, in lists of at most `capacity` blocks."""
    portion: list[Weights] = []
    room = capacity
    for part in parts:
        rest = part
        while len(rest):
            portion.append(rest[:room])
            rest = rest[room:]
            room -= len(portion[-1])
            if not room:
                yield portion
                portion, room = [], capacity
    if portion:
        yield portion
