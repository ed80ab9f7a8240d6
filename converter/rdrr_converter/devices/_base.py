"""What the converter asks of a device that encodes blocks."""

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
"""Blocks [n, 256] of float32, or of bfloat16 as uint16."""

BLOCK = 256
"""Weights in a block of the types that devices encode."""


class BlockDevice(Protocol):
    """Encodes blocks as `rdrr_format.codecs` do with the quality `ref` and no importance.

    Attributes:
        name: What it is called where a person reads it.
        types: Names of the storage types that it encodes.
        capacity: Blocks that it takes at a time.
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
            parts: Blocks that follow each other, all of one kind of `Weights`.

        Returns:
            uint8 [n, bytes of a block], and which of them [n] the device does not answer for:
            values are beyond what it computes with the CPU's bits, or beyond the type.

        Raises:
            DeviceError: The device fails.
        """
        ...

    def close(self) -> None:
        """Free the device."""
        ...


@contextmanager
def device_errors(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into `DeviceError`; their messages may span lines."""
    try:
        yield
    except kinds as error:
        found = str(error).strip().partition("\n")[0]
        raise DeviceError(f"{what} failed", found=found or type(error).__name__) from error


def portions(parts: Sequence[Weights], capacity: int) -> Iterator[list[Weights]]:
    """The blocks of `parts` in lists of at most `capacity` blocks, in their order."""
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
