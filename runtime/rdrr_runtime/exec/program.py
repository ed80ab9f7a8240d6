"""The passes of one model: lowered once, bound once, replayed for every token.

Kinds of pass exist, each for its own number of token rows: `decode` (1), `prefill` (a chunk of the
prompt), `score` (logits of every row, for evaluation), `few` and `window` (several tokens of a text
at once, see `rdrr_runtime.sequences.windows`). A kind is lowered and bound when it is first needed.
This module does not decide what to run when; `rdrr_runtime.gpu` does.

A `Plan` in a `PaperArena` allocates nothing and reads no weights: it tells what would serve what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice, align
from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.tuning import Tuning
from rdrr_manifests.package import Package

from rdrr_runtime.compile.fuse import DECODE_FUSIONS, Fusion
from rdrr_runtime.compile.fuse_prefill import PREFILL_FUSIONS
from rdrr_runtime.compile.fuse_rows import ROWS_FUSIONS, TEXTS_FUSIONS
from rdrr_runtime.compile.hints import Policy
from rdrr_runtime.compile.lower import Lowered, Lowering
from rdrr_runtime.compile.lower_head import Wanted, picks_of
from rdrr_runtime.compile.select import Choice, Select
from rdrr_runtime.compile.values import Workspace
from rdrr_runtime.compile.weights import load_weights
from rdrr_runtime.phases.context import VALUE_BYTES, OpContext, State
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.rope_tables import rope_bytes, rope_table

PREFILL_ROWS = 512
"""Most token rows of a pass."""

RING = 64
SCORE_ROWS = 64
"""Rows of a `score` pass: their logits are all kept, and a vocabulary can be large."""

FEW_ROWS = 8
WINDOW_ROWS = 32
"""Rows of a `few` and of a `window` pass: each weight is read once for all of them."""

WANTED: Mapping[str, Wanted] = MappingProxyType(
    {"score": Wanted.ALL, "few": Wanted.TAIL, "window": Wanted.TAIL}
)
"""Rows whose logits a kind of pass computes; of the other kinds, the last."""

STEPS: Mapping[str, str] = MappingProxyType({"decode": "decode", "few": "few rows"})
"""What choices call a kind of pass; the others are prefill."""

LOADED = ("decode", "prefill")
"""Kinds of pass that every model is loaded with."""

EXPLAINED = ("decode", "few", "prefill")
"""Kinds of pass whose choices differ from each other's."""

FUSIONS_OF_MANY: tuple[Fusion, ...] = (*ROWS_FUSIONS, *PREFILL_FUSIONS)
"""Tried in a pass of several rows: those of a few rows refuse many."""

Bound = tuple[BoundDispatch, ...]


@dataclass(frozen=True)
class Pass:
    """One kind of pass, bound.

    Attributes:
        rows: Most token rows it takes.
        body: Everything up to the last layer.
        head: Final norm and logits.
        sample: Argmax and the step's advance; of `few` and `window`, each row's pick.
        logits: f32 [1 or rows, vocab].
        picks: Of `few` and `window`: (u32 id, f32 entropy) [rows].
    """

    rows: int
    body: Bound
    head: Bound
    sample: Bound
    logits: BufferSlice
    picks: BufferSlice | None = None

    # The device keeps a replayed tuple ready to encode, so these must be the same object each time.
    @cached_property
    def to_logits(self) -> Bound:
        """Body and head."""
        return (*self.body, *self.head)

    @cached_property
    def to_picks(self) -> Bound:
        """Head and what follows, for a tail of the rows that the body had."""
        return (*self.head, *self.sample)

    @cached_property
    def to_token(self) -> Bound:
        """Body, head and argmax."""
        return (*self.body, *self.head, *self.sample)


def write_step(
    device: Device,
    state: State,
    ids: Sequence[int],
    base: int,
    positions: Sequence[int] | None = None,
) -> None:
    """Put the ids of a pass, their positions and the first KV slot where kernels read them.

    A position is that of the id's slot unless it is given.
    """
    places = range(base, base + len(ids)) if positions is None else positions
    device.write(state.step, np.array([len(ids), base, 0, 0], np.uint32))
    device.write(state.positions, np.asarray(places, dtype=np.uint32))
    device.write(state.tokens, np.asarray(ids, dtype=np.uint32))


class PaperArena(Arena):
    """An arena whose buffers exist on paper only."""

    @property
    def size(self) -> int:
        """Bytes that would be held."""
        return sum(one.size for one in self._slices)

    def empty(self, label: str, size: int) -> BufferSlice:
        """A slice of nothing."""
        del label
        self._slices.append(BufferSlice(None, 0, align(max(size, 4), 4)))
        return self._slices[-1]

    def upload(self, label: str, data: Any) -> BufferSlice:
        """A slice of nothing, as large as the data."""
        return self.empty(label, memoryview(data).nbytes)

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Check the range and write nothing."""
        target.range(offset, memoryview(data).nbytes)


class Plan:
    """A model laid out in an arena: its weights, caches, values and lowered passes.

    Args:
        package: What to load.
        device: Whose features and limits count.
        arena: Owner of the buffers; a `PaperArena` to see the choices without loading.
        policy: Hints.
        context: KV slots.
        kv_dtype: `f16`, `f32` or `q8_0`.
        fused: Whether ops are fused or reordered, rather than lowered one by one.
        tuning: Parameters of kernels; the defaults when None.

    Raises:
        ShardError: Bytes are missing.
        FormatError: A matrix that no kernel reads.
        DeviceError: Too little memory.
    """

    def __init__(
        self,
        package: Package,
        device: Device,
        arena: Arena,
        policy: Policy,
        *,
        context: int,
        kv_dtype: str,
        fused: bool = True,
        tuning: Tuning | None = None,
    ) -> None:
        self.tuning = tuning or Tuning()
        self.graph = package.graph
        self._device = device
        self._fused = fused
        self._select = Select(policy, device.info.software, device.max_binding)
        self._precision = self._select.precision(device.features)
        chunk = min(PREFILL_ROWS, context)
        self.weights = load_weights(
            arena, package, self.graph, self._select, empty=isinstance(arena, PaperArena)
        )
        self.cache = KvCache.allocate(arena, self.graph, context, kv_dtype)
        self.state = State.create(arena, chunk, RING)
        self.rows = {
            "decode": 1,
            "prefill": chunk,
            "score": min(SCORE_ROWS, chunk),
            "few": min(FEW_ROWS, chunk),
            "window": min(WINDOW_ROWS, chunk),
        }
        self._workspace = Workspace(arena, chunk, VALUE_BYTES[self._precision.kernel])
        self._lowered: dict[str, Lowered] = {}
        self._ropes = tuple(
            arena.empty(f"rope.{index}", rope_bytes(spec, context))
            if isinstance(arena, PaperArena)
            else arena.upload(f"rope.{index}", rope_table(spec, context))
            for index, spec in enumerate(self.graph.ropes)
        )

    @property
    def value_bytes(self) -> int:
        """Bytes of an activation."""
        return VALUE_BYTES[self._precision.kernel]

    def choices(self, kinds: Sequence[str] = LOADED) -> tuple[Choice, ...]:
        """What was made of the weights, then what serves each op of these passes."""
        passes = [self.lowered(kind) for kind in kinds]
        made = (one for lowered in passes for one in lowered.choices)
        return (self._precision, *self.weights.choices, *made)

    def lowered(self, kind: str) -> Lowered:
        """The dispatches of a kind of pass."""
        if kind not in self._lowered:
            self._lowered[kind] = self.lower(kind, self.tuning)
        return self._lowered[kind]

    def picks(self, kind: str) -> BufferSlice | None:
        """Where a pass over a tail leaves its picks."""
        is_tail = WANTED.get(kind) is Wanted.TAIL
        return picks_of(self._workspace, self.rows[kind]) if is_tail else None

    def _fusions(self, kind: str) -> tuple[Fusion, ...]:
        if not self._fused:
            return ()
        if kind == "decode":
            return DECODE_FUSIONS
        return FUSIONS_OF_MANY if self.rows[kind] > 1 else ()

    def lower(self, kind: str, tuning: Tuning) -> Lowered:
        """The dispatches of a pass with other parameters."""
        wanted, fusions = WANTED.get(kind, Wanted.LAST), self._fusions(kind)
        return self._lower(
            self.rows[kind],
            self.state,
            self.cache,
            wanted,
            fusions=fusions,
            tuning=tuning,
            step=STEPS.get(kind, "prefill"),
        )

    def lower_batch(
        self, rows: int, state: State, cache: KvCache, *, apart: bool = False
    ) -> Lowered:
        """The dispatches of a pass over up to `rows` rows of several sequences.

        Args:
            rows: More than one, no more than a pass of the prompt has.
            state: Its own, with places.
            cache: Its own, of several sequences.
            apart: No two rows of a pass are of the same sequence.
        """
        several = (*TEXTS_FUSIONS, *PREFILL_FUSIONS) if apart else FUSIONS_OF_MANY
        fusions = several if self._fused else ()
        return self._lower(rows, state, cache, Wanted.TAIL, fusions=fusions, tuning=self.tuning)

    def lower_prompt(self, state: State, cache: KvCache) -> Lowered:
        """The dispatches of a pass over a prompt, in other caches than the plan's own."""
        kind = "prefill"
        return self._lower(
            self.rows[kind],
            state,
            cache,
            Wanted.LAST,
            fusions=self._fusions(kind),
            tuning=self.tuning,
        )

    def batch_picks(self, rows: int) -> BufferSlice:
        """Where the passes of `lower_batch` leave their picks."""
        return picks_of(self._workspace, rows)

    def _lower(
        self,
        rows: int,
        state: State,
        cache: KvCache,
        wanted: Wanted,
        *,
        fusions: tuple[Fusion, ...],
        tuning: Tuning,
        step: str = "prefill",
    ) -> Lowered:
        limits = self._device.limits
        ctx = OpContext(
            state,
            rows,
            self._device.features,
            limits["max-compute-workgroup-storage-size"],
            limits["max-compute-invocations-per-workgroup"],
            self._precision.kernel,
            tuning,
        )
        return Lowering(
            self.graph,
            ctx,
            self.weights,
            cache,
            self._ropes,
            self._workspace,
            self._select,
            wanted=wanted,
            fusions=fusions,
            step=step,
            max_buffers=limits["max-storage-buffers-per-shader-stage"],
        ).run()


def choices_for(
    package: Package,
    device: Device,
    policy: Policy,
    context: int,
    kv_dtype: str,
    tuning: Tuning | None = None,
    kinds: Sequence[str] = LOADED,
) -> tuple[Choice, ...]:
    """What a backend would choose for kinds of pass, without loading anything."""
    return Plan(
        package,
        device,
        PaperArena(device),
        policy,
        context=context,
        kv_dtype=kv_dtype,
        tuning=tuning,
    ).choices(kinds)


class Program:
    """A plan's passes, bound to a device.

    Args:
        plan: What to bind.
        device: Where it runs.
    """

    def __init__(self, plan: Plan, device: Device) -> None:
        self._plan = plan
        self._device = device
        self._passes: dict[str, Pass] = {}

    def get(self, kind: str) -> Pass:
        """The pass of a kind."""
        if kind not in self._passes:
            lowered = self._plan.lowered(kind)
            body, head, sample = (
                tuple(self._device.bind(one) for one in part)
                for part in (lowered.body, lowered.head, lowered.sample)
            )
            rows = self._plan.rows[kind]
            picks = self._plan.picks(kind)
            self._passes[kind] = Pass(rows, body, head, sample, lowered.logits, picks)
        return self._passes[kind]
