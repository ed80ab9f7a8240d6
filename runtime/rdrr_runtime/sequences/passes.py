"""Which passes run the rows of sequences: the one choice in which a single sequence differs.

The decode pass of a single sequence is fused for one row, which also leaves the next step. Those of
several sequences end by moving each row on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.compile.pass_spec import (
    BATCHES,
    DECODE,
    PREFILL,
    PassSpec,
    Slots,
    batch_fill,
    batch_of,
)
from rdrr_runtime.exec.executor import Executor
from rdrr_runtime.exec.plan import RING, Plan
from rdrr_runtime.exec.program import PreparedPass, Program
from rdrr_runtime.phases.batch_advance import batch_advance
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.state import State
from rdrr_runtime.sequences.feed import Ring

MOST_SEQUENCES = BATCHES[-1].rows

BATCH_STEPS = 16
"""Steps of a batch that wait to be read back, at most."""


class Passes(Protocol):
    """The passes of one sequence or of several."""

    def decode(self, rows: int) -> PreparedPass:
        """Return the pass over one row of each of `rows` sequences."""
        ...

    def ring(self, rows: int) -> Ring:
        """Return where the decode pass over `rows` rows leaves its ids."""
        ...

    def consecutive(self, ids: int, sequence: int) -> PreparedPass | None:
        """Return the pass over `ids` ids of one sequence, if it can run by itself."""
        ...


class SinglePasses:
    """The passes of a model's only sequence.

    Args:
        program: The model's passes.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def decode(self, rows: int) -> PreparedPass:
        """Return the fused pass of one row."""
        del rows
        return self._program.get(DECODE)

    def ring(self, rows: int) -> Ring:
        """Return the layout of the ring."""
        del rows
        return Ring(RING)

    def consecutive(self, ids: int, sequence: int) -> PreparedPass:
        """Return the decode pass for one id, else the prefill pass."""
        del sequence
        return self._program.get(DECODE if ids == 1 else PREFILL)


class BatchPasses:
    """The passes of several sequences, made when they are first needed.

    Args:
        plan: The model.
        executor: What runs the passes.
        state: The step.
        cache: Keys and values of the sequences.
    """

    def __init__(self, plan: Plan, executor: Executor, state: State, cache: KvCache) -> None:
        self._plan, self._executor = plan, executor
        self._state, self._cache = state, cache
        self._most = plan.rows(PREFILL)
        self._made: dict[PassSpec, PreparedPass] = {}

    def decode(self, rows: int) -> PreparedPass:
        """Return the smallest pass over one row of each of `rows` sequences."""
        return self._get(batch_of(self._size(rows)))

    def ring(self, rows: int) -> Ring:
        """Return the layout of the ring, which depends on the size of the pass."""
        return Ring(BATCH_STEPS, self._size(rows))

    def consecutive(self, ids: int, sequence: int) -> PreparedPass | None:
        """Return the prefill pass of any sequence; None for few ids, which share a mapped pass.

        Its logits are never asked for: the last id of a prompt runs in a decode pass.
        """
        del sequence
        return None if ids <= MOST_SEQUENCES else self._get(PREFILL)

    def mapped(self, rows: int) -> PreparedPass:
        """Return the pass that fills the caches with rows of any sequences."""
        return self._get(batch_fill(self._most if rows > MOST_SEQUENCES else self._size(rows)))

    def _get(self, spec: PassSpec) -> PreparedPass:
        if spec not in self._made:
            made = self._plan.lower(spec, state=self._state, cache=self._cache)
            if made.picks is not None and spec.slots is Slots.DISTINCT:
                advance = advance_rows(self._state, made.picks, made.rows)
                made = replace(made, sample=(*made.sample, *advance))
            self._made[spec] = PreparedPass(made, self._executor)
        return self._made[spec]

    def _size(self, rows: int) -> int:
        """Return the rows of the smallest pass that takes `rows`."""
        fitting = [one for one in (spec.rows for spec in BATCHES) if rows <= one <= self._most]
        return fitting[0] if fitting else self._most


def advance_rows(state: State, picks: BufferSlice, rows: int) -> list[Phase]:
    """Return the end of a batch's decode pass, which moves each row on."""
    return batch_advance(state, picks, rows=rows, steps=BATCH_STEPS, label="advance")
