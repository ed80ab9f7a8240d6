"""The recurrent states of sequences on the GPU, which take the place of a key-value cache.

The state of an op is a tensor of fixed size, f32, that summarizes all tokens so far. Unlike the
slots of a key-value cache it cannot be cut back to fewer tokens: `state_positions` decides which
copies of it are kept for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice
from rdrr_device.device import Device
from rdrr_format.errors import FormatError

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StateCache:
    """The states of some sequences.

    Attributes:
        shapes: Shape of each state of one sequence.
        buffers: The states of all sequences, f32 [sequences, ...] each.
        whole: Memory that holds `buffers` without anything else; there are several if one would be
            larger than the device can bind.
        copies: Memory for copies of the states.
    """

    shapes: Sequence[tuple[int, ...]] = ()
    buffers: Sequence[BufferSlice] = ()
    whole: Sequence[BufferSlice] = ()
    copies: Sequence[StateCache] = ()

    @staticmethod
    def allocate(
        arena: Arena, shapes: Sequence[tuple[int, ...]], sequences: int = 1, copies: int = 0
    ) -> StateCache:
        """Allocate zeroed states of some sequences.

        Args:
            arena: Owner of the buffers.
            shapes: Shape of each state of one sequence.
            sequences: Number of sequences.
            copies: Number of copies of all states to allocate.

        Raises:
            DeviceError: A state exceeds what the device can bind or allocate.
        """
        sizes = [4 * prod(shape) * sequences for shape in shapes]
        places = [-(-size // OFFSET_ALIGNMENT) * OFFSET_ALIGNMENT for size in sizes]
        if not shapes:
            return StateCache()
        kept = [StateCache.allocate(arena, shapes, sequences) for _ in range(copies)]
        if sum(places) > arena.max_binding:
            states = [arena.empty(f"state.{at}", size) for at, size in enumerate(places)]
            return StateCache(shapes, _heads(states, sizes), states, kept)
        memory = arena.empty("states", sum(places))
        starts = [sum(places[:at]) for at in range(len(places))]
        states = [memory.range(at, size) for at, size in zip(starts, places, strict=True)]
        return StateCache(shapes, _heads(states, sizes), (memory,), kept)

    @property
    def size(self) -> int:
        """Bytes of GPU memory, including the copies."""
        states = sum(part.size for part in self.whole)
        return states + sum(part.size for part in self.copies)

    def of_sequence(self, sequence: int) -> list[BufferSlice]:
        """Return the memory of the states of one sequence."""
        sizes = [4 * prod(shape) for shape in self.shapes]
        pairs = zip(self.buffers, sizes, strict=True)
        return [buffer.range(sequence * size, size) for buffer, size in pairs]

    def read(self, device: Device) -> dict[str, U8]:
        """Read the states of a single sequence, by name, as bytes of f32."""
        return {
            name: device.read(buffer)[: 4 * prod(shape)].reshape(*shape[:-1], 4 * shape[-1])
            for name, shape, buffer in self._named()
        }

    def write(self, device: Device, parts: Mapping[str, U8]) -> None:
        """Restore the states that `read` returned.

        Raises:
            FormatError: The names or shapes are those of another model.
        """
        shapes = {name: (*shape[:-1], 4 * shape[-1]) for name, shape, _ in self._named()}
        if shapes != {name: part.shape for name, part in parts.items()}:
            raise FormatError(
                "the saved states belong to another model", expected=f"{len(shapes)} parts"
            )
        for name, _, buffer in self._named():
            device.write(buffer, np.ascontiguousarray(parts[name]))

    def _named(self) -> list[tuple[str, tuple[int, ...], BufferSlice]]:
        return [
            (state_name(at), shape, buffer)
            for at, (shape, buffer) in enumerate(zip(self.shapes, self.buffers, strict=True))
        ]


def state_name(index: int) -> str:
    """Return the name of a state in saved sessions."""
    return f"state.{index}"


def is_state(name: str) -> bool:
    """Return whether a part of a saved session is a state, not keys or values."""
    return name.startswith("state.")


def _heads(places: Sequence[BufferSlice], sizes: Sequence[int]) -> list[BufferSlice]:
    """Return the states without the padding behind them."""
    return [place.range(0, size) for place, size in zip(places, sizes, strict=True)]
