"""Batches of stored rows on the device, which are repacked in one submission.

A model has hundreds of matrices, many of a few megabytes. Submitting each by itself takes longer
than copying it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice, align
from rdrr_device.kernels import Dispatch

from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.weights.repack import TARGET_BYTES, Chunk, RepackStep

STEPS = 64
"""Most dispatches of a batch."""

TARGETS_BYTES = STEPS * OFFSET_ALIGNMENT
"""Bytes that tell the dispatches of a batch where to write; each has a binding of its own."""


class RepackBatch:
    """A staging buffer for stored rows, and the dispatches that repack what is in it.

    Args:
        arena: Submits the dispatches.
        temporary: Owner of the buffers; it must live until the last batch is sent.
        size: Bytes of the staging buffer; it grows if a chunk is larger.
    """

    def __init__(self, arena: Arena, temporary: Arena, size: int) -> None:
        self._arena, self._temporary, self._size = arena, temporary, size
        self._targets = temporary.empty("chunks", TARGETS_BYTES)
        self._words = np.zeros((STEPS, OFFSET_ALIGNMENT // 4), np.uint32)
        self._staging: BufferSlice | None = None
        self._used = 0
        self._dispatches: list[Dispatch] = []

    def stage(self, rows: npt.NDArray[np.uint8], first: int, row_blocks: int) -> Chunk:
        """Copy stored rows to the device, where they stay until the batch is sent.

        Args:
            rows: uint8 [rows, row_bytes].
            first: Index of the first row in the matrix.
            row_blocks: Blocks of a row.
        """
        data = np.ascontiguousarray(rows).reshape(-1)
        if data.size % 4:
            data = np.concatenate([data, np.zeros(-data.size % 4, np.uint8)])
        if len(self._dispatches) == STEPS or self._used + data.size > self._staging_size:
            self.send()
        if self._staging is None or data.size > self._staging.size:
            self._staging = self._temporary.empty("blocks", max(data.size, self._size))
        blocks = self._staging.range(self._used, data.size)
        self._temporary.write(blocks, data)
        self._used = align(self._used + data.size)
        return Chunk(blocks, self._target(), first, len(rows), row_blocks)

    def add(self, steps: Iterator[RepackStep]) -> None:
        """Add the steps that repack the chunk that was staged last."""
        for step in steps:
            if len(self._dispatches) == STEPS:
                self._submit()  # the rows stay in the staging buffer
            self._words[len(self._dispatches), : step.target.size] = step.target
            phase = replace(step.phase, buffers={**step.phase.buffers, "chunk": self._target()})
            self._dispatches.append(as_dispatch(phase))

    def send(self) -> None:
        """Submit what was added; the staging buffer is then free for other rows."""
        self._submit()
        self._used = 0

    @property
    def _staging_size(self) -> int:
        return self._staging.size if self._staging is not None else 0

    def _target(self) -> BufferSlice:
        """Return the binding of the next dispatch."""
        return self._targets.range(len(self._dispatches) * OFFSET_ALIGNMENT, TARGET_BYTES)

    def _submit(self) -> None:
        if self._dispatches:
            self._temporary.write(self._targets, self._words[: len(self._dispatches)])
            self._arena.run(*self._dispatches)
            self._dispatches.clear()
