"""Batched decoding on the GPU: rows of several sequences in one pass.

Each sequence has its own slots in the cache. Each row names its sequence and slot, so a pass can
mix rows of any sequences, and each weight is read once for all rows. The number of dispatches does
not depend on the number of rows. Long prompts run one after the other in prefill passes; short
prompts share passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import groupby

from rdrr_device.arena import DeviceArena
from rdrr_device.buffers import BufferSlice
from rdrr_device.copies import copy_slices
from rdrr_format.errors import UsageError

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.prepared import PreparedPass
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.cache.state_positions import StatePosition
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.sequences.feed import GpuFeed
from rdrr_runtime.sequences.gpu_sequences import PASSES_PER_SUBMISSION, GpuSequences, GpuStateCopies
from rdrr_runtime.sequences.passes import BATCH_STEPS, MOST_SEQUENCES, BatchPasses
from rdrr_runtime.sequences.sampler import GpuSampler


class GpuBatch(GpuSequences):
    """The caches and passes of a batch, beside those of the model's single sequence.

    Args:
        plan: The model.
        executor: An executor of the model's passes; the batch gets another one, whose bind groups
            are freed with it.
        sequences: Number of sequences, at most the rows of the largest of `BATCHES`.
        context: Slots of each sequence.

    Raises:
        UsageError: There are too many sequences, or the cache type does not support batches.
        DeviceError: There is too little memory.
    """

    def __init__(self, plan: Plan, executor: Executor, *, sequences: int, context: int) -> None:
        _check(plan, sequences)
        arena, dtype = DeviceArena(executor.device, "batch"), plan.cache.dtype
        executor = executor.another(arena)
        self.context = context
        self.sequences = sequences
        self._arena = arena
        with ExitStack() as undo:
            undo.callback(arena.dispose)
            self._cache = KvCache.allocate(arena, plan.graph, context, dtype, sequences)
            self._positions = [
                StatePosition(GpuStateCopies(executor.device, self._cache.states, sequence))
                for sequence in range(sequences if self._cache.states.shapes else 0)
            ]
            ring = BATCH_STEPS * MOST_SEQUENCES
            state, vocabulary = State.create(arena, plan.prompt_rows, ring), plan.graph.vocab_size
            self._batch_passes = BatchPasses(plan, executor, state, self._cache)
            rows = self._batch_passes.ring(sequences).width
            sampler = partial(
                GpuSampler,
                executor,
                arena,
                state,
                vocabulary,
                rows=rows,
                sequences=sequences,
                batch=True,
            )
            super().__init__(
                executor,
                state,
                self._batch_passes,
                vocabulary,
                sampler,
                tables=plan.host_tables,
                images=plan.images,
            )
            undo.pop_all()

    @property
    def kv_bytes(self) -> int:
        """Bytes of the caches."""
        return self._cache.size

    def settle(self) -> None:
        """See `GpuBackend.settle`; it settles steps of as many rows as the last one had."""
        self._executor.settle()

    def build_ahead(self) -> None:
        """Start to compile the shaders of the decode passes of all sizes, in other threads.

        A software adapter takes seconds for a pass, so its passes are compiled when they first run.
        """
        if not self._executor.device.info.software:
            phases = self._batch_passes.decode_phases(self.sequences)
            self._executor.device.build_ahead(as_dispatch(phase).kernel for phase in phases)

    def resumable(self, sequence: int, base: int) -> int:
        """Return the last slot up to `base` at which a sequence can go on."""
        return self._positions[sequence].resumable(base) if self._positions else base

    def border(self, ids: Sequence[int], begin: int, end: int) -> int:
        """Return where a part of a prompt ends, see `BatchBackend.border`."""
        return self.step.border(ids, begin, end)

    def copy(self, source: int, target: int, slots: int) -> None:
        """Copy the first slots of a sequence to another one, see `BatchBackend.copy`.

        All slots are copied: they are one piece in each layer, where the first ones are one in each
        head.
        """
        device, cache = self._executor.device, self._cache
        pairs = zip(cache.of_sequence(source), cache.of_sequence(target), strict=True)
        copy_slices(device, pairs, scratch=self._scratch, label="copying a beginning")
        before, after = self.step.positions(source), self.step.positions(target)
        if before is not None and after is not None:
            after.copy_from(before, slots)
        if not self._positions:
            return
        index = self._positions[source].copy_at(slots)
        assert index is not None, "the states are copied where rows of a prompt end"
        states = cache.states.copies[index].of_sequence(source), cache.states.of_sequence(target)
        copy_slices(device, zip(*states, strict=True), label="copying states")
        self._positions[target].replace(slots)

    def feed(
        self,
        rows: Sequence[Row],
        first: Callable[[], int],
        *,
        sampled: bool = False,
        per_submission: int = 1,
    ) -> GpuFeed:
        """Return a feed that continues after rows, see `GpuSequences.feed`.

        A text begins where the rows of a prompt ended; its states may have gone further since.
        """
        for row in rows if self._positions else ():
            position = self._positions[row.sequence]
            if position.copy_at(row.slot) is None:
                position.reset(row.slot)
            else:
                position.begin(row.slot)
            position.leave()
        return super().feed(rows, first, sampled=sampled, per_submission=per_submission)

    @cached_property
    def _scratch(self) -> BufferSlice:
        largest = max(part.size for part in self._cache.of_sequence(0))
        return self._arena.empty("scratch", largest)

    def feed_rows(self, rows: Sequence[Row], *, sampled: bool) -> GpuFeed | None:
        """Return a feed that begins with rows, see `BatchBackend.feed_rows`."""
        if self.step.waits_for_ids:
            return None
        first = partial(self._write, rows)
        return self.feed(rows, first, sampled=sampled, per_submission=PASSES_PER_SUBMISSION)

    def fill(self, rows: Sequence[Row]) -> None:
        """Run rows only to store their keys and values; a sequence's rows are in slot order."""
        shared, filled = list[Row](), dict[int, int]()
        for sequence, group in groupby(rows, lambda row: row.sequence):
            group_rows = list(group)
            if self._positions:
                self._positions[sequence].begin(group_rows[0].slot)
                filled[sequence] = len(group_rows)
            ids = [row.token for row in group_rows]
            if self.run(ids, group_rows[0].slot, _to_cache, sequence) is None:
                shared += group_rows
        while shared:
            prepared = self._batch_passes.multi_sequence(len(shared))
            end = self.border([row.token for row in shared], 0, prepared.rows)
            part, shared = shared[:end], shared[end:]
            self.step.write_rows(part)
            self._executor.run(prepared.body, len(part))
        for sequence, count in filled.items():
            self._positions[sequence].advance(count)
            self._positions[sequence].keep()

    def close(self) -> None:
        """Free the caches."""
        self._arena.dispose()


def _check(plan: Plan, sequences: int) -> None:
    if not plan.cache.supports_batches:
        raise UsageError(
            "batches do not support a q8_0 key-value cache",
            expected="f16 or f32",
            hint="use `kv_dtype` f16",
        )
    if not 0 < sequences <= MOST_SEQUENCES:
        raise UsageError(
            "the number of sequences of a batch is out of range",
            expected=f"1 to {MOST_SEQUENCES}",
            found=sequences,
        )


def _to_cache(prepared: PreparedPass) -> Prepared:
    return prepared.body
