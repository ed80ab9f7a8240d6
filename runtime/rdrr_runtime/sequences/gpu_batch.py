"""Several texts decoded together on the GPU: rows of different sequences in one pass.

Each sequence has slots of its own; a row says which sequence and slot are its own, so a pass takes
any mixture of them, and each weight is read once for all rows. The number of dispatches does not
depend on the rows. Long prompts run one after the other by the kernels of a single text's prefill;
short ones share passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.readback import Fetch
from rdrr_format.errors import UsageError

from rdrr_runtime.compile.pass_spec import BATCHES, PREFILL, batch_fill, batch_of
from rdrr_runtime.exec.program import Plan, write_step
from rdrr_runtime.phases.batch_advance import batch_advance
from rdrr_runtime.phases.context import State
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.sample import chain_of
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.batch import Row
from rdrr_runtime.sequences.batch_sampler import GpuBatchSampler

F32 = npt.NDArray[np.float32]
Bound = tuple[BoundDispatch, ...]

STEPS = 16
"""Passes between two readbacks, at most."""


MOST_SEQUENCES = BATCHES[-1].rows

TOGETHER = 2
"""Passes of a submission: between two submissions a GPU rests."""


@dataclass(frozen=True)
class _Pass:
    """A pass, bound; the device keeps each of these tuples ready to encode."""

    to_logits: Bound
    to_token: Bound
    logits: BufferSlice


class GpuBatch:
    """Caches and passes of several sequences, beside those of a model's single one.

    Args:
        plan: The model.
        device: Where.
        sequences: At most the last of `BATCHES`.
        context: Slots of each.

    Raises:
        UsageError: Too many sequences, or a cache type that has no rows of several.
        DeviceError: Too little memory.
    """

    def __init__(self, plan: Plan, device: Device, *, sequences: int, context: int) -> None:
        dtype = plan.cache.spec.dtype
        if not plan.cache.spec.has_batches:
            raise UsageError(
                "a batch has no cache in q8_0", expected="f16 or f32", hint="use --kv-dtype f16"
            )
        if not 0 < sequences <= MOST_SEQUENCES:
            raise UsageError(
                "too many sequences", expected=f"1 to {MOST_SEQUENCES}", found=sequences
            )
        self.sequences, self.context = sequences, context
        self._plan, self._device = plan, device
        self._arena = Arena(device, "batch")
        self._cache = KvCache.allocate(self._arena, plan.graph, context, dtype, sequences)
        self._most = plan.rows(PREFILL)
        ring = STEPS * MOST_SEQUENCES
        self._state = State.create(self._arena, self._most, ring, slot_mapping=True)
        self._passes: dict[int, _Pass] = {}
        self._sampler: GpuBatchSampler | None = None
        self._options = SamplingParams()
        self._drawn: dict[tuple[int, bool, bool], Bound] = {}
        self._fills: dict[int, Bound] = {}
        self._prompts: dict[int, Bound] = {}

    @property
    def kv_bytes(self) -> int:
        """Memory of the caches."""
        return self._cache.size

    def fill(self, rows: Sequence[Row]) -> None:
        """Run rows for their keys and values alone: of a text one slot after the other."""
        shared: list[Row] = []
        for sequence, group in groupby(rows, lambda row: row.sequence):
            text = list(group)
            alone = self._prompt_body(sequence) if len(text) > MOST_SEQUENCES else None
            if alone is None:
                shared += text
            else:
                self._fill_alone(text, alone)
        self._fill_shared(shared)

    def _fill_alone(self, rows: Sequence[Row], body: Bound) -> None:
        for start in range(0, len(rows), self._most):
            part = rows[start : start + self._most]
            ids = [one.token for one in part]
            write_step(self._device, self._state, ids, part[0].slot)
            self._device.submit(body, len(part))

    def _fill_shared(self, rows: Sequence[Row]) -> None:
        for start in range(0, len(rows), self._most):
            part = rows[start : start + self._most]
            size = self._most if len(part) > MOST_SEQUENCES else self._size(len(part))
            self._write(part)
            self._device.submit(self._fill_body(size), len(part))

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run a row of each of some texts, then feed back the likeliest tokens; `count` steps.

        Returns:
            For each row its `count` new ids, of which the last has not been run.
        """
        size = self._size(len(rows))
        return self._issue(rows, count, size, self._pass(size).to_token)

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a text that `draw` goes on with, see `DrawingBatch.begin`."""
        self._options = options
        self._drawing().begin(sequence, options, seen)

    def draw(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """As `greedy`, with the tokens that are drawn for each text."""
        size = self._size(len(rows))
        return self._issue(rows, count, size, self._to_drawn(size))

    def _drawing(self) -> GpuBatchSampler:
        if self._sampler is None:
            self._sampler = GpuBatchSampler(
                self._device,
                self._arena,
                self._plan.graph.vocab_size,
                rows=self._size(self.sequences),
                sequences=self.sequences,
            )
        return self._sampler

    def _to_drawn(self, size: int) -> Bound:
        """A pass, the draws of its rows and the step's advance."""
        key = (size, *chain_of(self._options))
        if key not in self._drawn:
            which, picks = self._pass(size), self._plan.picks(batch_of(size))
            assert picks is not None, "a batch has picks"
            made = [
                *self._drawing().draw(self._state, which.logits, picks, self._options),
                *batch_advance(self._state, picks, rows=size, steps=STEPS, label="advance"),
            ]
            end = tuple(self._device.bind(one) for one in made)
            self._drawn[key] = (*which.to_logits, *end)
        return self._drawn[key]

    def _issue(
        self, rows: Sequence[Row], count: int, size: int, to_token: Bound
    ) -> list[list[int]]:
        """Run a row of each of some texts and what chooses their tokens, `count` times."""
        self._write(rows)
        # A whole ring is fetched, so the next step writes its beginning again; one more ring is
        # issued before it is waited for.
        fetches: deque[Fetch] = deque()
        parts: list[npt.NDArray[np.uint32]] = []
        for start in range(0, count, STEPS):
            steps = min(STEPS, count - start)
            for first in range(0, steps, TOGETHER):
                self._device.submit(to_token, len(rows), min(TOGETHER, steps - first))
            fetches.append(self._device.fetch(self._state.ring.range(0, 4 * steps * size)))
            if len(fetches) > 1:
                parts.append(_ids_of(fetches.popleft(), size))
        parts += [_ids_of(one, size) for one in fetches]
        ids: list[list[int]] = np.concatenate(parts)[:, : len(rows)].T.tolist()
        return ids

    def logits(self, rows: Sequence[Row]) -> F32:
        """Run a row of each of some texts; logits of each, float32 [rows, vocab]."""
        vocab, size = self._plan.graph.vocab_size, self._size(len(rows))
        which = self._pass(size)
        self._write(rows)
        self._device.submit(which.to_logits, len(rows))
        data = self._device.read(which.logits, 0, 4 * len(rows) * vocab)
        return data.view(np.float32).reshape(len(rows), vocab)

    def close(self) -> None:
        """Free the caches."""
        self._arena.dispose()

    def _size(self, rows: int) -> int:
        """The smallest pass that takes so many rows."""
        fitting = [one for one in (spec.rows for spec in BATCHES) if rows <= one <= self._most]
        return fitting[0] if fitting else self._most

    def _prompt_body(self, sequence: int) -> Bound | None:
        """The pass over a prompt of one sequence; None where its caches cannot be bound alone."""
        if sequence not in self._prompts:
            cache = self._cache.of_sequence(sequence)
            if cache is None:
                return None
            made = self._plan.lower(
                PREFILL, state=replace(self._state, slot_mapping=None), cache=cache
            )
            self._prompts[sequence] = tuple(self._device.bind(one) for one in made.body)
        return self._prompts[sequence]

    def _pass(self, size: int) -> _Pass:
        """The pass over a row of each of so many texts."""
        if size not in self._passes:
            made = self._plan.lower(batch_of(size), state=self._state, cache=self._cache)
            picks = self._plan.picks(batch_of(size))
            assert picks is not None, "a batch has picks"
            advance = batch_advance(self._state, picks, rows=size, steps=STEPS, label="advance")
            to_logits, end = (
                tuple(self._device.bind(one) for one in part)
                for part in ((*made.body, *made.head), (*made.sample, *advance))
            )
            self._passes[size] = _Pass(to_logits, (*to_logits, *end), made.logits)
        return self._passes[size]

    def _fill_body(self, size: int) -> Bound:
        """The pass over so many rows of texts that may have several of them."""
        if size not in self._fills:
            made = self._plan.lower(batch_fill(size), state=self._state, cache=self._cache)
            self._fills[size] = tuple(self._device.bind(one) for one in made.body)
        return self._fills[size]

    def _write(self, rows: Sequence[Row]) -> None:
        state, device = self._state, self._device
        assert state.slot_mapping is not None
        slots = [one.slot for one in rows]
        device.write(state.step, np.array([len(rows), 0, 0, 0], np.uint32))
        device.write(state.tokens, np.array([one.token for one in rows], np.uint32))
        device.write(state.positions, np.array(slots, np.uint32))
        places = np.array([[one.sequence, one.slot] for one in rows], np.uint32)
        device.write(state.slot_mapping, places)


def _ids_of(fetch: Fetch, size: int) -> npt.NDArray[np.uint32]:
    """Ids [steps, size] that a ring held."""
    return fetch.take()[0].view(np.uint32).reshape(-1, size)
