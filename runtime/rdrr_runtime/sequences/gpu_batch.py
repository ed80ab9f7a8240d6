"""Several sequences decoded together on the GPU: rows of different sequences in one pass.

Each sequence has slots of its own; a row says which sequence and slot are its own, so a pass takes
any mixture of them, and each weight is read once for all rows. The number of dispatches does not
depend on the rows. Long prompts run one after the other by the prefill kernels of a single
sequence; short ones share passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby

from rdrr_device.arena import Arena
from rdrr_format.errors import UsageError

from rdrr_runtime.backend import Row
from rdrr_runtime.compile.pass_spec import PREFILL
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.program import PreparedPass
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.state import State
from rdrr_runtime.sequences.gpu_sequences import GpuSequences
from rdrr_runtime.sequences.passes import BATCH_STEPS, MOST_SEQUENCES, BatchPasses
from rdrr_runtime.sequences.sampler import GpuSampler


class GpuBatch(GpuSequences):
    """Caches and passes of several sequences, beside those of a model's single one.

    Args:
        plan: The model.
        executor: What runs the passes.
        sequences: At most the last of `BATCHES`.
        context: Slots of each.

    Raises:
        UsageError: Too many sequences, or a cache type that has no mapped rows.
        DeviceError: Too little memory.
    """

    def __init__(self, plan: Plan, executor: Executor, *, sequences: int, context: int) -> None:
        _check(plan, sequences)
        arena, dtype = Arena(executor.device, "batch"), plan.cache.spec.dtype
        self.context = context
        self.sequences = sequences
        self._arena = arena
        with ExitStack() as undo:
            undo.callback(arena.dispose)
            self._cache = KvCache.allocate(arena, plan.graph, context, dtype, sequences)
            ring = BATCH_STEPS * MOST_SEQUENCES
            state, vocabulary = State.create(arena, plan.rows(PREFILL), ring), plan.graph.vocab_size
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
            super().__init__(executor, state, self._batch_passes, vocabulary, sampler)
            undo.pop_all()

    @property
    def kv_bytes(self) -> int:
        """Memory of the caches."""
        return self._cache.size

    def fill(self, rows: Sequence[Row]) -> None:
        """Run rows for their keys and values alone: of a sequence one slot after the other."""
        shared: list[Row] = []
        for sequence, group in groupby(rows, lambda row: row.sequence):
            own = list(group)
            ids = [one.token for one in own]
            if self.run(ids, own[0].slot, _to_cache, sequence) is None:
                shared += own
        while shared:
            which = self._batch_passes.mapped(len(shared))
            part, shared = shared[: which.rows], shared[which.rows :]
            self.step.write_rows(part)
            self._executor.run(which.body, len(part))

    def close(self) -> None:
        """Free the caches."""
        self._arena.dispose()


def _check(plan: Plan, sequences: int) -> None:
    if not plan.cache.spec.has_batches:
        raise UsageError(
            "a batch has no cache in q8_0", expected="f16 or f32", hint="use `kv_dtype` f16"
        )
    if not 0 < sequences <= MOST_SEQUENCES:
        raise UsageError("too many sequences", expected=f"1 to {MOST_SEQUENCES}", found=sequences)


def _to_cache(which: PreparedPass) -> Prepared:
    return which.body
