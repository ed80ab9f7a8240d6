"""The step: the tokens, positions and slots that the next pass reads, in GPU buffers.

The host writes the step, or a decode pass advances it: it leaves its tokens and the next positions
where the next pass reads them. A pass that continues from there needs no write, and this module
keeps track of when that is the case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rdrr_device.device import Device

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.host_tables import HostTables
from rdrr_runtime.exec.image_inputs import ImageInputs
from rdrr_runtime.images.rows import SequencePositions
from rdrr_runtime.packing import Segments
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.records import Numbers, pack_segments, pack_step


class Step:
    """The inputs of the next pass, and which rows the GPU has already put there.

    Args:
        device: The device on which the passes run.
        state: The buffers of the step.
        tables: Tables on the host, whose rows are uploaded with each step; None for none.
        images: Where features of images are written with each step; None if the model sees none.

    Attributes:
        state: The buffers of the step.
        recorded: Number of steps whose token ids went into the ring since the last write.
    """

    def __init__(
        self,
        device: Device,
        state: State,
        tables: HostTables | None = None,
        images: ImageInputs | None = None,
    ) -> None:
        self.state = state
        self._images = images
        self._positions: dict[int, SequencePositions] = {}
        self._tables = tables or None
        self.recorded = 0
        self._device = device
        self._next: tuple[Row, ...] | None = None

    def write(
        self,
        ids: Sequence[int],
        base: int,
        positions: Numbers | None = None,
        sequence: int = 0,
        last_n: int = 1,
        launched: int = 0,
    ) -> None:
        """Write ids of one sequence, to be stored in consecutive slots.

        Args:
            ids: Token ids.
            base: Slot of the first id.
            positions: Position of each id in the sequence; its slot when None.
            sequence: Index of the sequence.
            last_n: Number of last rows whose logits a window pass computes.
            launched: Number of rows that the pass is launched for, if it is more than `ids`.
        """
        tokens: Numbers = ids
        if positions is None:
            tokens, positions = self._place(ids, base, sequence)
        packed = pack_step(
            tokens,
            np.arange(base, base + len(ids)),
            positions=positions,
            sequences=sequence,
            last_n=last_n,
            launched=launched,
        )
        self._write(packed, ids)

    def write_texts(self, ids: Sequence[int], segments: Segments) -> None:
        """Write the ids of packed texts, to be stored in slots from 0 on."""
        assert self.state.segments is not None, "only models that pack texts get several"
        packed = pack_segments(segments.starts, segments.ends, segments.types)
        self._device.write(self.state.segments, packed)
        self.write(ids, 0, segments.positions())

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Write rows of any sequences."""
        ids, sequences, slots = zip(*rows, strict=True)
        tokens, positions = np.array(ids), np.array(slots)
        for at, count in _runs(rows) if self._images is not None else ():
            part = slice(at, at + count)
            tokens[part], places = self._place(ids[part], slots[at], sequences[at], at)
            positions[part] = slots[part] if places is None else places
        self._write(pack_step(tokens, slots, positions=positions, sequences=sequences), ids)

    def positions(self, sequence: int) -> SequencePositions | None:
        """Return the positions of a sequence; None if the model sees no images."""
        if self._images is None:
            return None
        images = self._images.images
        return self._positions.setdefault(sequence, SequencePositions(images))

    def parts(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """Return ids in the parts that passes may divide further: all of them without images."""
        return [ids] if self._images is None else [*self._images.parts(ids)]

    def border(self, ids: Sequence[int], begin: int, end: int) -> int:
        """Return where a part of ids ends, see `SeenImages.border`."""
        return end if self._images is None else self._images.images.border(ids, begin, end)

    def behind_images(self, ids: Sequence[int]) -> int:
        """Return how many first ids end with the last token of an image; 0 if all are text."""
        if self._images is None:
            return 0
        is_image = np.asarray(ids) >= self._images.first
        return int(np.flatnonzero(is_image)[-1]) + 1 if is_image.any() else 0

    def _place(
        self, ids: Sequence[int], base: int, sequence: int, first: int = 0
    ) -> tuple[Numbers, npt.NDArray[np.int64] | None]:
        """Write the features of rows; return tokens and positions, None if these are slots."""
        positions = self.positions(sequence)
        rows = None if positions is None else positions.of_pass(ids, base)
        if rows is None or self._images is None:
            return ids, None
        return self._images.write(self._device, ids, rows, first)

    def invalidate(self) -> None:
        """Forget the rows that the GPU has put into the step.

        This is needed when another pass has run since, or when token ids have not been read back.
        """
        self._next = None

    def advance(self, rows: Sequence[Row]) -> None:
        """Note that the GPU has put these rows into the step, so that a pass can continue there."""
        self._next = tuple(rows)

    def resume(self, rows: Sequence[Row]) -> bool:
        """Return whether the step already holds these rows; the step is invalid afterwards.

        It never does where the host must upload rows of tables.
        """
        resumes = self._tables is None and self._next == tuple(rows)
        self.invalidate()
        return resumes

    @property
    def waits_for_ids(self) -> bool:
        """Whether the host must know each token before its pass."""
        return self._tables is not None

    def _write(self, packed: npt.NDArray[np.uint32], tokens: Sequence[int]) -> None:
        """Write the step, which also restarts the ring."""
        if self._tables is not None:
            self._tables.write(self._device, tokens)
        self.recorded = 0
        self.invalidate()
        self._device.write(self.state.step, packed)


def _runs(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each run in slots of one sequence."""
    at = 0
    while at < len(rows):
        count = 1
        while at + count < len(rows) and _follows(rows[at + count - 1], rows[at + count]):
            count += 1
        yield at, count
        at += count


def _follows(row: Row, following: Row) -> bool:
    return (following.sequence, following.slot) == (row.sequence, row.slot + 1)
