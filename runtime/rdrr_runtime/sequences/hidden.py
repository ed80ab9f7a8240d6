"""Hidden passes: what the head would read of texts, from which their embeddings are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_manifests.graph.padding import LANES

from rdrr_runtime.compile.pass_spec import HIDDEN
from rdrr_runtime.exec.prepared import PreparedPasses
from rdrr_runtime.packing import EncodedText, Segments, packs
from rdrr_runtime.sequences.gpu_sequences import GpuSequences

F32 = npt.NDArray[np.float32]

_TYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.float16), 4: np.dtype(np.float32)}
"""The type of activations by their bytes."""


class GpuHidden:
    """The pass `HIDDEN` of a plan.

    Args:
        sequence: The single sequence, whose step and cache the pass uses.
        prepared: The passes.
        size: Width of the hidden states that the head reads.
        value_bytes: Bytes per element of an activation.
    """

    def __init__(
        self, sequence: GpuSequences, prepared: PreparedPasses, size: int, value_bytes: int
    ) -> None:
        self._sequence, self._prepared = sequence, prepared
        self._size, self._type = size, _TYPES[value_bytes]

    def read(self, texts: Sequence[EncodedText]) -> Iterator[F32]:
        """Run texts and yield the hidden states of each, f32 [tokens, width].

        Raises:
            GenerationError: Keys or values are beyond the range of the cache.
        """
        rows = self._prepared.get(HIDDEN).rows
        if self._sequence.step.state.segments is None:
            for text in texts:
                parts = range(0, len(text), rows)
                yield np.concatenate([self._part(text.ids, start, rows) for start in parts])
            return
        for packed in packs(texts, rows):
            segments = Segments.of(packed)
            ids = [token for text in packed for token in text.ids]
            self._sequence.position.begin(0)
            self._sequence.step.write_texts(ids, segments)
            yield from segments.split(self._run(len(ids)))

    def _part(self, ids: Sequence[int], start: int, rows: int) -> F32:
        """Run the rows of a text from `start` on; those before must have run."""
        if start == 0:
            self._sequence.position.begin(0)
        part = ids[start : start + rows]
        self._sequence.step.write(part, start)
        return self._run(len(part))

    def _run(self, count: int) -> F32:
        """Run the pass with the rows that the step holds and return their hidden states."""
        prepared, executor = self._prepared.get(HIDDEN), self._prepared.executor
        stored = -(-self._size // LANES) * LANES
        executor.run(prepared.to_logits, count)
        size = self._type.itemsize * count * stored
        data = executor.device.read(prepared.logits, 0, size).view(self._type)
        rows = data.reshape(count, stored)[:, : self._size]
        checked = self._sequence.faults.check_rows(rows)
        self._sequence.position.advance(count)
        return np.asarray(checked, np.float32)
