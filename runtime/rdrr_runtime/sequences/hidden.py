"""Hidden passes: what the head would read of texts, from which their embeddings are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.readback import Fetch
from rdrr_manifests.graph.padding import LANES

from rdrr_runtime.compile.pass_spec import HIDDEN, PassSpec
from rdrr_runtime.exec.executor import Prepared
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.prepared import PreparedPass, PreparedPasses
from rdrr_runtime.packing import EncodedText, Segments, mean_of, packs
from rdrr_runtime.phases.rows.mean_rows import MeanForm, mean_rows
from rdrr_runtime.sequences.gpu_sequences import GpuSequences

F32 = npt.NDArray[np.float32]

_TYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.float16), 4: np.dtype(np.float32)}
"""The type of activations by their bytes."""

AHEAD = 2
"""Passes whose means may be on their way, so that the device works while the host packs texts."""


class GpuHidden:
    """The passes of a plan that compute hidden states.

    Args:
        plan: The plan.
        arena: Owner of the buffers.
        sequence: The single sequence, whose step and cache the pass uses.
        prepared: The passes.
    """

    def __init__(
        self, plan: Plan, arena: Arena, sequence: GpuSequences, prepared: PreparedPasses
    ) -> None:
        self._plan, self._arena = plan, arena
        self._sequence, self._prepared = sequence, prepared
        self._size, self._type = plan.output_size, _TYPES[plan.value_bytes]
        self._stored = -(-self._size // LANES) * LANES
        self._poolings: dict[PassSpec, Prepared] = {}

    def read(self, texts: Sequence[EncodedText]) -> Iterator[F32]:
        """Run texts and yield the hidden states of each, f32 [tokens, width].

        Raises:
            GenerationError: Keys or values are beyond the range of the cache.
        """
        rows = self._plan.rows(HIDDEN)
        if not self._packs:
            for text in texts:
                parts = range(0, len(text), rows)
                yield np.concatenate([self._part(text.ids, start, rows) for start in parts])
            return
        for packed in packs(texts, rows):
            segments = self._write(packed)
            yield from segments.split(self._run(int(segments.ends[-1])))

    def means(self, texts: Sequence[EncodedText], part: slice) -> Iterator[F32]:
        """Run texts and yield the mean of a part of the hidden states of each, f32 [width].

        Those of several packed texts are taken on the device, and passes follow each other without
        waiting for the host.

        Raises:
            GenerationError: Keys or values are beyond the range of the cache.
        """
        if not self._packs or len(texts) == 1:
            yield from (mean_of(states[part]) for states in self.read(texts))
            return
        waiting: deque[Fetch] = deque()
        for packed in packs(texts, self._plan.rows(HIDDEN)):
            waiting.append(self._submit_means(packed, part))
            if len(waiting) > AHEAD:
                yield from self._collect(waiting.popleft())
        while waiting:
            yield from self._collect(waiting.popleft())

    @property
    def _packs(self) -> bool:
        """Whether a pass may have several texts."""
        return self._sequence.step.state.segments is not None

    def _pass(self, rows: int) -> PreparedPass:
        """Return the shortest pass with room for some rows."""
        specs = self._plan.hidden
        return self._prepared.get(next(spec for spec in specs if rows <= self._plan.rows(spec)))

    @cached_property
    def _pooled(self) -> tuple[BufferSlice, BufferSlice]:
        """The rows of each text and their means."""
        rows = self._plan.rows(HIDDEN)
        ranges = self._arena.empty("text ranges", 8 * rows)
        return ranges, self._arena.empty("text means", 4 * rows * self._stored)

    def _pooling(self, prepared: PreparedPass) -> Prepared:
        """Return the phase that takes the means behind a pass; the same object each time."""
        spec = prepared.lowered.spec
        if spec not in self._poolings:
            ctx, (ranges, means) = self._plan.context_of(spec), self._pooled
            x, width = prepared.logits, self._stored
            phases = mean_rows(ctx, ranges, x, means, MeanForm(width), "means of texts")
            self._poolings[spec] = self._prepared.executor.prepare(phases)
        return self._poolings[spec]

    def _submit_means(self, packed: Sequence[EncodedText], part: slice) -> Fetch:
        """Submit a pass over texts and the copy of their means."""
        executor = self._prepared.executor
        ranges, means = self._pooled
        segments = self._write(packed)
        count = int(segments.ends[-1])
        prepared = self._pass(count)
        executor.device.write(ranges, segments.ranges(part))
        executor.run(prepared.to_logits, count)
        executor.run(self._pooling(prepared), len(packed))
        self._sequence.position.advance(count)
        return executor.device.fetch(means.range(0, 4 * len(packed) * self._stored))

    def _collect(self, fetch: Fetch) -> F32:
        """Wait for the means of a pass and return them, [texts, width]."""
        (data,) = fetch.collect()
        rows = data.view(np.float32).reshape(-1, self._stored)[:, : self._size]
        return self._sequence.faults.check_rows(rows)

    def _write(self, packed: Sequence[EncodedText]) -> Segments:
        """Write texts into the step of the pass."""
        segments = Segments.of(packed)
        ids = [token for text in packed for token in text.ids]
        self._sequence.position.begin(0)
        self._sequence.step.write_texts(ids, segments)
        return segments

    def _part(self, ids: Sequence[int], start: int, rows: int) -> F32:
        """Run the rows of a text from `start` on; those before must have run."""
        if start == 0:
            self._sequence.position.begin(0)
        part = ids[start : start + rows]
        self._sequence.step.write(part, start)
        return self._run(len(part))

    def _run(self, count: int) -> F32:
        """Run the pass with the rows that the step holds and return their hidden states."""
        prepared, executor = self._pass(count), self._prepared.executor
        executor.run(prepared.to_logits, count)
        size = self._type.itemsize * count * self._stored
        data = executor.device.read(prepared.logits, 0, size).view(self._type)
        rows = data.reshape(count, self._stored)[:, : self._size]
        checked = self._sequence.faults.check_rows(rows)
        self._sequence.position.advance(count)
        return np.asarray(checked, np.float32)
