"""The passes of one model: lowered once, bound once, replayed for every token.

A pass is named by its `PassSpec`, and lowered and bound when it is first needed. This module does
not decide what to run when; `rdrr_runtime.gpu` does.

A `Plan` in a `PaperArena` allocates nothing and reads no weights: it tells what would serve what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice, align
from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.tuning import Tuning
from rdrr_manifests.package import Package

from rdrr_runtime.compile.builder import Model
from rdrr_runtime.compile.decision import Decision
from rdrr_runtime.compile.hints import Policy
from rdrr_runtime.compile.lower import Lowered, lower
from rdrr_runtime.compile.lower_head import picks_of
from rdrr_runtime.compile.pass_spec import LOADED, PREFILL, PassSpec
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.compile.values import Workspace
from rdrr_runtime.compile.weights import load_weights
from rdrr_runtime.phases.context import VALUE_BYTES, OpContext, State
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.rope_tables import rope_bytes, rope_table

RING = 64
"""Ids that wait to be read back, at most."""

Bound = tuple[BoundDispatch, ...]


@dataclass(frozen=True)
class Pass:
    """One kind of pass, bound.

    Attributes:
        rows: Most token rows it takes.
        body: Everything up to the last layer.
        head: Final norm and logits.
        sample: Argmax and the step's advance; of a pass with picks, each row's pick.
        logits: f32 [1 or rows, vocab].
        picks: Of a pass with picks: (u32 id, f32 entropy) [rows].
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
        self.device = device
        preferences = Preferences(policy, device.info.software)
        self._values, why = preferences.activations(device.features)
        self._activations = Decision("load", "activations", self._values, why.text, why.unmet)
        chunk = PREFILL.within(context).rows
        self.weights = load_weights(
            arena, package, self.graph, preferences, empty=isinstance(arena, PaperArena)
        )
        self.cache = KvCache.allocate(arena, self.graph, context, kv_dtype)
        self.state = State.create(arena, chunk, RING)
        self._context = context
        self._workspace = Workspace(arena, chunk, VALUE_BYTES[self._values])
        self._lowered: dict[PassSpec, Lowered] = {}
        ropes = tuple(
            arena.empty(f"rope.{index}", rope_bytes(spec, context))
            if isinstance(arena, PaperArena)
            else arena.upload(f"rope.{index}", rope_table(spec, context))
            for index, spec in enumerate(self.graph.ropes)
        )
        self._model = Model(
            self.graph,
            self.weights,
            ropes,
            self._workspace,
            preferences,
            max_buffers=device.limits["max-storage-buffers-per-shader-stage"],
            max_binding=device.max_binding,
            fuses=fused,
        )

    @property
    def value_bytes(self) -> int:
        """Bytes of an activation."""
        return VALUE_BYTES[self._values]

    def rows(self, spec: PassSpec) -> int:
        """Return the most token rows of a pass in this context."""
        return spec.within(self._context).rows

    def decisions(self, specs: Sequence[PassSpec] = LOADED) -> tuple[Decision, ...]:
        """Return what was made of the weights, then what serves each op of these passes."""
        possible = [one for one in specs if not one.is_mapped or self.cache.spec.has_batches]
        passes = [self._on_paper(one) if one.is_mapped else self.lowered(one) for one in possible]
        made = (one for lowered in passes for one in lowered.decisions)
        return (self._activations, *self.weights.decisions, *made)

    def _on_paper(self, spec: PassSpec) -> Lowered:
        """Return the dispatches of a mapped pass in caches that are not allocated."""
        state, cache = self.memory(spec, PaperArena(self.device))
        return self.lower(spec, state=state, cache=cache)

    def memory(self, spec: PassSpec, arena: Arena) -> tuple[State, KvCache]:
        """Return the step and the caches that a pass runs on.

        They are the plan's own, but for a mapped pass, which gets others of as many sequences as
        it has rows.

        Args:
            spec: Which pass.
            arena: Where those of a mapped pass are allocated.
        """
        if not spec.is_mapped:
            return self.state, self.cache
        rows, kind = self.rows(spec), self.cache.spec
        state = State.create(arena, rows, RING, slot_mapping=True)
        return state, KvCache.allocate(arena, self.graph, kind.context, kind.dtype, rows)

    def lowered(self, spec: PassSpec) -> Lowered:
        """Return the dispatches of a pass, lowered once."""
        if spec not in self._lowered:
            self._lowered[spec] = self.lower(spec)
        return self._lowered[spec]

    def picks(self, spec: PassSpec) -> BufferSlice | None:
        """Return where a pass leaves the pick of each row, if it has picks."""
        return picks_of(self._workspace, self.rows(spec)) if spec.has_picks else None

    def lower(
        self,
        spec: PassSpec,
        tuning: Tuning | None = None,
        *,
        state: State | None = None,
        cache: KvCache | None = None,
    ) -> Lowered:
        """Return the dispatches of a pass.

        Args:
            spec: Which pass; of a mapped one both `state` and `cache` must be given.
            tuning: Parameters of kernels; the plan's own when None.
            state: Buffers of the step; the plan's own when None.
            cache: Keys and values; the plan's own when None.
        """
        limits = self.device.limits
        ctx = OpContext(
            state or self.state,
            self.rows(spec),
            self.device.features,
            limits["max-compute-workgroup-storage-size"],
            limits["max-compute-invocations-per-workgroup"],
            self._values,
            self.tuning if tuning is None else tuning,
            self.device.info.software,
        )
        return lower(self._model, spec, ctx, cache or self.cache)


def decisions_for(
    package: Package,
    device: Device,
    policy: Policy,
    context: int,
    kv_dtype: str,
    tuning: Tuning | None = None,
    specs: Sequence[PassSpec] = LOADED,
) -> tuple[Decision, ...]:
    """Return what a backend would choose for some passes, without loading anything."""
    return Plan(
        package,
        device,
        PaperArena(device),
        policy,
        context=context,
        kv_dtype=kv_dtype,
        tuning=tuning,
    ).decisions(specs)


class Program:
    """A plan's passes, bound to a device.

    Args:
        plan: What to bind.
        device: Where it runs.
    """

    def __init__(self, plan: Plan, device: Device) -> None:
        self._plan = plan
        self._device = device
        self._passes: dict[PassSpec, Pass] = {}

    def get(self, spec: PassSpec) -> Pass:
        """Return a pass, bound once."""
        if spec not in self._passes:
            lowered = self._plan.lowered(spec)
            body, head, sample = (
                tuple(self._device.bind(one) for one in part)
                for part in (lowered.body, lowered.head, lowered.sample)
            )
            rows, picks = self._plan.rows(spec), self._plan.picks(spec)
            self._passes[spec] = Pass(rows, body, head, sample, lowered.logits, picks)
        return self._passes[spec]
