"""The passes that run the rows of sequences; only here do a single sequence and a batch differ.

A decode pass of one row is fused for it, and its argmax also advances the step. Decode passes of
more rows end with a phase that advances each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.compile.pass_spec import (
    BATCHES,
    DECODE,
    PREFILL,
    PassSpec,
    Slots,
    batch_fill,
    batch_of,
)
from rdrr_runtime.exec.executor import Executor, TokenPass
from rdrr_runtime.exec.plan import RING, Plan
from rdrr_runtime.exec.prepared import PreparedPass, PreparedPasses
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.sampling.batch_advance import batch_advance
from rdrr_runtime.sequences.feed import Ring

MOST_SEQUENCES = BATCHES[-1].rows

BATCH_STEPS = 16
"""Largest number of steps of a batch of several rows whose ids wait to be read back."""


class Passes(Protocol):
    """The passes of one sequence or of several."""

    @property
    def cache(self) -> KvCache:
        """The keys and values that the passes read and store."""

    def decode(self, rows: int) -> PreparedPass:
        """Return the pass over one row of each of `rows` sequences."""

    def ring(self, rows: int) -> Ring:
        """Return the layout of the ring for the ids of the decode pass over `rows` rows."""

    def consecutive(self, *parts: int) -> list[PreparedPass]:
        """Return the passes that run consecutive parts of one sequence, whose lengths are `parts`.

        There are none if all ids share passes with those of other sequences.
        """


class SinglePasses:
    """The passes of a model's single sequence.

    Args:
        prepared: The model's passes.
    """

    def __init__(self, prepared: PreparedPasses) -> None:
        self._prepared = prepared

    @property
    def cache(self) -> KvCache:
        """The keys and values of the sequence."""
        return self._prepared.cache

    def decode(self, rows: int) -> PreparedPass:
        """Return the fused decode pass of one row."""
        del rows
        return self._prepared.get(DECODE)

    def ring(self, rows: int) -> Ring:
        """Return the layout of the ring, one id per step."""
        del rows
        return Ring(RING)

    def consecutive(self, *parts: int) -> list[PreparedPass]:
        """See `Passes.consecutive`; there are no other sequences."""
        return [prepared for ids in parts for prepared in self._prepared.consecutive(ids)]


class BatchPasses:
    """The passes of a batch, each made when it is first needed.

    Args:
        plan: The model.
        executor: Runs the passes.
        state: Buffers of the inputs of the next pass.
        cache: Keys and values of the sequences.
    """

    def __init__(self, plan: Plan, executor: Executor, state: State, cache: KvCache) -> None:
        self._plan, self._executor = plan, executor
        self._state, self.cache = state, cache
        self._most = plan.rows(PREFILL)
        self._prepared: dict[PassSpec, PreparedPass] = {}

    def decode(self, rows: int) -> PreparedPass:
        """Return the smallest pass that runs one row of each of `rows` sequences."""
        return self._get(batch_of(self._size(rows)))

    def decode_phases(self, rows: int) -> Iterator[Phase]:
        """Yield the phases of the passes that run up to `rows` rows."""
        sizes = dict.fromkeys(self._size(min(spec.rows, rows)) for spec in BATCHES)
        for size in sizes:
            yield from self._get(batch_of(size)).lowered.phases

    def ring(self, rows: int) -> Ring:
        """Return the layout of the ring, whose width is the number of rows of the pass."""
        width = self._size(rows)
        return Ring(self._state.ring.size // 4) if width == 1 else Ring(BATCH_STEPS, width)

    def consecutive(self, *parts: int) -> list[PreparedPass]:
        """Return the prefill passes of a long prompt; none for a short one, which shares a pass.

        Their logits are never needed: the last id of a prompt runs in a decode pass.
        """
        if sum(parts) <= MOST_SEQUENCES:
            return []
        specs = (spec for ids in parts for spec in self._plan.consecutive(ids, decodes=False))
        return [self._get(spec) for spec in specs]

    def multi_sequence(self, rows: int) -> PreparedPass:
        """Return the pass that stores the keys and values of rows of any sequences."""
        return self._get(batch_fill(self._most if rows > MOST_SEQUENCES else self._size(rows)))

    def _get(self, spec: PassSpec) -> PreparedPass:
        if spec not in self._prepared:
            lowered, token_pass = self._lower(spec), None
            if spec.slots is Slots.DISTINCT:
                if lowered.picks is not None:
                    advance = advance_rows(self._state, lowered.picks, lowered.rows)
                    lowered = replace(lowered, sample=(*lowered.sample, *advance))
                token_pass = TokenPass(lowered, partial(self._lower, spec))
            self._prepared[spec] = PreparedPass(lowered, self._executor, token_pass)
        return self._prepared[spec]

    def _lower(self, spec: PassSpec, grid: Grid | None = None) -> Pass:
        return self._plan.lower(spec, state=self._state, cache=self.cache, grid=grid)

    def _size(self, rows: int) -> int:
        """Return the number of rows of the smallest decode pass that fits `rows` rows."""
        fitting = [size for size in (spec.rows for spec in BATCHES) if rows <= size <= self._most]
        return fitting[0] if fitting else self._most


def advance_rows(state: State, picks: BufferSlice, rows: int) -> list[Phase]:
    """Return the phases that end a batch's decode pass: they advance each row to its next slot."""
    return batch_advance(state, picks, rows=rows, steps=BATCH_STEPS, label="advance")
