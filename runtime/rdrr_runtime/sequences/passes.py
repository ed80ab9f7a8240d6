"""Which passes run the rows of sequences: the one choice in which a single sequence differs.

A single sequence has its rows in consecutive slots, so its decode pass is fused for one row, which
also leaves the next step. Several sequences have a slot mapping, and their decode passes end by
moving each row on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch
from rdrr_device.pipelines import BoundDispatch

from rdrr_runtime.compile.pass_spec import BATCHES, DECODE, PREFILL, batch_fill, batch_of
from rdrr_runtime.exec.program import RING, Pass, Plan, Program
from rdrr_runtime.phases.batch_advance import batch_advance
from rdrr_runtime.phases.context import State
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.sequences.feed import Ring

Bound = tuple[BoundDispatch, ...]

MOST_SEQUENCES = BATCHES[-1].rows

BATCH_STEPS = 16
"""Steps of a batch that wait to be read back, at most."""


class Passes(Protocol):
    """The passes of one sequence or of several."""

    def decode(self, rows: int) -> Pass:
        """Return the pass over one row of each of so many sequences."""
        ...

    def ring(self, rows: int) -> Ring:
        """Return where the decode pass over so many rows leaves its ids."""
        ...

    def consecutive(self, ids: int, sequence: int) -> Pass | None:
        """Return the pass over so many ids of one sequence, if it can run by itself."""
        ...


class SinglePasses:
    """The passes of a model's only sequence.

    Args:
        program: The model's passes.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def decode(self, rows: int) -> Pass:
        """Return the fused pass of one row."""
        del rows
        return self._program.get(DECODE)

    def ring(self, rows: int) -> Ring:
        """Return the layout of the ring."""
        del rows
        return Ring(RING)

    def consecutive(self, ids: int, sequence: int) -> Pass:
        """Return the decode pass for one id, else the prefill pass."""
        del sequence
        return self._program.get(DECODE if ids == 1 else PREFILL)


class BatchPasses:
    """The passes of several sequences, lowered and bound when they are first needed.

    Args:
        plan: The model.
        device: Where the passes run.
        state: The step, with a slot mapping.
        cache: Keys and values of the sequences.
    """

    def __init__(self, plan: Plan, device: Device, state: State, cache: KvCache) -> None:
        self._plan, self._device = plan, device
        self._state, self._cache = state, cache
        self._most = plan.rows(PREFILL)
        self._decodes: dict[int, Pass] = {}
        self._fills: dict[int, Bound] = {}
        self._prompts: dict[int, Pass | None] = {}

    def decode(self, rows: int) -> Pass:
        """Return the smallest pass over one row of each of so many sequences."""
        size = self._size(rows)
        if size not in self._decodes:
            spec = batch_of(size)
            made = self._plan.lower(spec, state=self._state, cache=self._cache)
            picks = self._plan.picks(spec)
            assert picks is not None, "a batch has picks"
            sample = (*made.sample, *advance_rows(self._state, picks, size))
            body, head, end = (self._bind(part) for part in (made.body, made.head, sample))
            self._decodes[size] = Pass(size, body, head, end, made.logits, picks)
        return self._decodes[size]

    def ring(self, rows: int) -> Ring:
        """Return the layout of the ring, which depends on the size of the pass."""
        return Ring(BATCH_STEPS, self._size(rows))

    def consecutive(self, ids: int, sequence: int) -> Pass | None:
        """Return the prefill pass of a sequence; None for few ids, which share a mapped pass.

        None also where the caches of a sequence cannot be bound alone.
        """
        if ids <= MOST_SEQUENCES:
            return None
        if sequence not in self._prompts:
            cache = self._cache.of_sequence(sequence)
            self._prompts[sequence] = None if cache is None else self._prompt(cache)
        return self._prompts[sequence]

    def _prompt(self, cache: KvCache) -> Pass:
        state = replace(self._state, slot_mapping=None)
        made = self._plan.lower(PREFILL, state=state, cache=cache)
        # Its logits are never asked for: the last id of a prompt runs in a decode pass.
        return Pass(self._most, self._bind(made.body), (), (), made.logits)

    def mapped(self, rows: int) -> tuple[Bound, int]:
        """Return the pass that fills the caches with rows of any sequences, and its most rows."""
        size = self._most if rows > MOST_SEQUENCES else self._size(rows)
        if size not in self._fills:
            made = self._plan.lower(batch_fill(size), state=self._state, cache=self._cache)
            self._fills[size] = self._bind(made.body)
        return self._fills[size], size

    def _size(self, rows: int) -> int:
        """Return the rows of the smallest pass that takes so many."""
        fitting = [one for one in (spec.rows for spec in BATCHES) if rows <= one <= self._most]
        return fitting[0] if fitting else self._most

    def _bind(self, dispatches: Iterable[Dispatch]) -> Bound:
        return tuple(self._device.bind(one) for one in dispatches)


def advance_rows(state: State, picks: BufferSlice, rows: int) -> list[Dispatch]:
    """Return the end of a batch's decode pass, which moves each row on."""
    return batch_advance(state, picks, rows=rows, steps=BATCH_STEPS, label="advance")
