"""Hidden passes: what the head would read of one text, from which its embedding is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_manifests.graph.padding import LANES

from rdrr_runtime.compile.pass_spec import HIDDEN
from rdrr_runtime.exec.prepared import PreparedPasses
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

    def read(self, ids: Sequence[int]) -> F32:
        """Run a sequence from slot 0 and return its hidden states, f32 [len(ids), width].

        Raises:
            GenerationError: Keys or values are beyond the range of the cache.
        """
        prepared, executor = self._prepared.get(HIDDEN), self._prepared.executor
        self._sequence.position.begin(0)
        out = np.empty((len(ids), self._size), np.float32)
        stored = -(-self._size // LANES) * LANES
        for start in range(0, len(ids), prepared.rows):
            part = ids[start : start + prepared.rows]
            self._sequence.step.write(part, start)
            executor.run(prepared.to_logits, len(part))
            size = self._type.itemsize * len(part) * stored
            data = executor.device.read(prepared.logits, 0, size).view(self._type)
            rows = data.reshape(len(part), stored)[:, : self._size]
            out[start : start + len(part)] = self._sequence.faults.check_rows(rows)
        self._sequence.position.advance(len(ids))
        return out
