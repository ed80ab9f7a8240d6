"""Plans: a model laid out in memory, with its passes lowered to lists of phases.

A plan in a `DryRunArena` is a dry run: it allocates nothing and reads no weights, but makes the
same decisions. Executors run the passes, see `rdrr_runtime.exec.prepared`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import INT8_DOT, Capabilities
from rdrr_device.dry_run import DryRunArena
from rdrr_device.tuning import Tuning
from rdrr_manifests.graph.padding import pad_widths
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.decision import Decision
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.lowering.builder import LoadedModel
from rdrr_runtime.compile.lowering.graph import Pass, lower
from rdrr_runtime.compile.lowering.values import Workspace
from rdrr_runtime.compile.pass_spec import (
    DECODE,
    EXPLAINED,
    HIDDEN,
    PREFILL,
    PREFILLS,
    SHORT_HIDDEN,
    PassSpec,
)
from rdrr_runtime.compile.weights.upload import Weights, allocate_weights
from rdrr_runtime.exec.executor import TokenPass
from rdrr_runtime.exec.host_tables import HostTables, host_tables
from rdrr_runtime.exec.image_inputs import ImageInputs
from rdrr_runtime.images.rows import seen_images
from rdrr_runtime.phases.attention.rope_tables import rope_bytes, rope_table
from rdrr_runtime.phases.cache.kept_hidden import KeptHidden
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.context import VALUE_BYTES, Grid, OpContext
from rdrr_runtime.phases.generation_state import State

PACKED_ROWS, SOFTWARE_PACKED_ROWS = 8192, 2048
"""Token rows of a pass over packed texts, unless a single text may have more. A GPU takes many
to be busy; a software adapter gains nothing from them."""

RING = 64
"""Largest number of ids that wait to be read back."""


class Plan:
    """A model laid out in an arena: its weights, caches, values and lowered passes.

    Args:
        package: What to load.
        arena: Owner of the buffers; a `DryRunArena` for a dry run. What its device can do decides
            which kernels are chosen.
        policy: Hints.
        context: Slots of the key-value cache.
        kv_dtype: Type of the cache's elements: `f16`, `f32` or `q8_0`.
        fused: Whether ops may be fused or reordered; otherwise they are lowered one by one.
        tuning: Tuned parameters of kernels; the defaults when None.
        upload: Whether to upload the matrices now; otherwise the caller calls `upload`.
        draft_of: The plan of the model whose draft head this is; None for a model.

    Raises:
        ShardError: Bytes of a tensor are missing.
        FormatError: No kernel can read a matrix.
        DeviceError: There is too little memory.
    """

    def __init__(
        self,
        package: Package,
        arena: Arena,
        policy: Policy,
        *,
        context: int,
        kv_dtype: str,
        fused: bool = True,
        tuning: Tuning | None = None,
        upload: bool = True,
        draft_of: Plan | None = None,
    ) -> None:
        self.tuning = tuning or Tuning()
        self.output_size = package.graph.output_size
        graph = package.graph if draft_of is None else package.mtp_graph
        assert graph is not None, "a draft head is only loaded from a package that has one"
        padded = pad_widths(graph)
        self._arena, self._policy = arena, policy
        self.graph = padded.graph
        self.capabilities = able = arena.capabilities
        preferences = Preferences(policy, able.software, INT8_DOT in able.language)
        self._values, why = preferences.activations(able.features)
        self._activations = Decision("load", "activations", self._values, why.text, why.unmet)
        self._context = context
        # A pass over packed texts has more rows than one text.
        packed = SOFTWARE_PACKED_ROWS if able.software else PACKED_ROWS
        slots = context if self.graph.is_causal else max(context, packed)
        self._slots = slots
        chunk = max(self.prompt_rows, self.rows(HIDDEN))
        shared = None if draft_of is None else draft_of.weights
        self.weights: Weights = allocate_weights(arena, package, padded, preferences, shared)
        self.host_tables = HostTables(())
        if policy.keeps_tables_on_host:
            self.host_tables = host_tables(arena, package, self.graph, chunk, self.value_bytes)
        self.cache = KvCache.allocate(arena, self.graph, slots, kv_dtype)
        self.state = State.create(arena, chunk, RING, packs_texts=not self.graph.is_causal)
        self._workspace = Workspace(arena, chunk, VALUE_BYTES[self._values])
        self._lowered: dict[PassSpec, Pass] = {}
        self._mapped: dict[PassSpec, Pass] = {}
        images = None if draft_of is not None else seen_images(package)
        more = 0 if images is None else chunk  # rows with three positions, see `ImageInputs`
        ropes = tuple(
            arena.empty(f"rope.{index}", rope_bytes(spec, context, more))
            if isinstance(arena, DryRunArena)
            else arena.upload(f"rope.{index}", rope_table(spec, context, more))
            for index, spec in enumerate(self.graph.ropes)
        )
        self.images = None
        if images is not None:
            allocated = ImageInputs.allocate(arena, self.graph, images, ropes, chunk, context)
            self.images = allocated
        self._model = LoadedModel(
            self.graph,
            self.weights,
            ropes,
            self._workspace,
            preferences,
            max_binding=arena.max_binding,
            may_fuse=fused,
            hidden=None if draft_of is None else replace(draft_of.keep_hidden(), ahead=1),
            host_rows=self.host_tables.buffers,
            images=self.images,
        )
        if upload:
            self.upload()

    @property
    def ropes(self) -> tuple[BufferSlice, ...]:
        """The table of rotations of each of `graph.ropes`."""
        return self._model.ropes

    def keep_hidden(self) -> KeptHidden:
        """Return the buffer for hidden states, which passes that keep them can use from now on."""
        kept = self._model.hidden
        if kept is None:
            slots, width = self.prompt_rows, self.graph.hidden_size
            buffer = self._arena.empty("hidden", self.value_bytes * slots * width)
            kept = KeptHidden(buffer, slots, width)
            self._model = replace(self._model, hidden=kept)
        return kept

    def draft_head(self, package: Package, arena: Arena) -> Plan:
        """Return the plan of the draft head of the model's package, which shares its matrices.

        Raises:
            ShardError: Bytes of a tensor are missing.
            FormatError: No kernel can read a matrix.
            DeviceError: There is too little memory.
        """
        return Plan(
            package,
            arena,
            self._policy,
            context=self._context,
            kv_dtype=self.cache.dtype,
            fused=self._model.may_fuse,
            tuning=self.tuning,
            draft_of=self,
        )

    def upload(self) -> None:
        """Upload the matrices, once; passes can be lowered before, but not run.

        Raises:
            ShardError: Bytes of a tensor are missing.
            FormatError: The values of a tensor do not fit the type that it is expanded to.
            DeviceError: The device is lost.
        """
        self.weights.fill()

    @cached_property
    def decode(self) -> TokenPass:
        """The decode pass, which may run in one dispatch."""
        return TokenPass(self.lowered(DECODE), lambda grid: self.lower(DECODE, grid=grid))

    @property
    def value_bytes(self) -> int:
        """Bytes per element of an activation."""
        return VALUE_BYTES[self._values]

    def rows(self, spec: PassSpec) -> int:
        """Return the largest number of token rows of a pass in this context.

        Where attention is not causal, a text runs in one pass, which may have several.
        """
        if spec == HIDDEN and not self.graph.is_causal:
            return self._slots
        return spec.within(self._context).rows

    @property
    def prefills(self) -> tuple[PassSpec, ...]:
        """The passes that prompts run in, the shortest first.

        A software adapter has one: its kernels are no faster with fewer rows, and compiling their
        shaders takes longer than a short prompt. The longest is for matrices of subgroups.
        """
        if self.capabilities.software:
            return (PREFILL,)
        return PREFILLS if self.capabilities.matrices else PREFILLS[:-1]

    @property
    def prompt_rows(self) -> int:
        """Most token rows of the passes that prompts run in."""
        return self.rows(self.prefills[-1])

    @property
    def hidden(self) -> tuple[PassSpec, ...]:
        """The passes that compute hidden states, the shortest first; see `prefills`."""
        is_alone = self.graph.is_causal or self.capabilities.software
        return (HIDDEN,) if is_alone else (SHORT_HIDDEN, HIDDEN)

    @property
    def loaded(self) -> tuple[PassSpec, ...]:
        """The passes that are lowered and compiled at load; the others are when they first run.

        A process that decodes behind one prompt runs decoding and, in most cases, the shortest
        pass of prompts or `PREFILL`. A model without causal attention runs whole texts only.
        """
        if not self.graph.is_causal:
            return (HIDDEN,)
        return (DECODE, *dict.fromkeys((self.prefills[0], PREFILL)))

    @property
    def explained(self) -> tuple[PassSpec, ...]:
        """The passes that `rdrr explain` shows."""
        if not self.graph.is_causal:
            return (HIDDEN,)
        return (*EXPLAINED, *self.prefills)

    def consecutive(self, ids: int, *, decodes: bool) -> list[PassSpec]:
        """Return the passes that run consecutive token ids of one sequence, in order.

        Each is the shortest that has room for all ids that are left; the longest if none has.

        Args:
            ids: Number of token ids.
            decodes: Whether a single id may run in the decode pass.
        """
        specs = (DECODE, *self.prefills) if decodes else self.prefills
        passes: list[PassSpec] = []
        while ids > 0:
            passes.append(next((spec for spec in specs if ids <= self.rows(spec)), specs[-1]))
            ids -= self.rows(passes[-1])
        return passes

    def decisions(self, specs: Sequence[PassSpec] | None = None) -> tuple[Decision, ...]:
        """Return the decisions made at load, then those for each op of these passes.

        Args:
            specs: The passes; those of `loaded` when None.
        """
        of_ops = (decision for lowered in self.passes(specs) for decision in lowered.decisions)
        loaded = (*self.weights.decisions, *self.host_tables.decisions())
        return (self._activations, *loaded, *of_ops)

    def passes(self, specs: Sequence[PassSpec] | None = None) -> tuple[Pass, ...]:
        """Return passes lowered, leaving out those that the type of the cache rules out.

        Args:
            specs: The passes; those of `loaded` when None.
        """
        chosen = self.loaded if specs is None else specs
        possible = [
            spec for spec in chosen if not spec.is_multi_sequence or self.cache.supports_batches
        ]
        return tuple(
            self._dry_run(spec) if spec.is_multi_sequence else self.lowered(spec)
            for spec in possible
        )

    def _dry_run(self, spec: PassSpec) -> Pass:
        """Return a pass over several sequences, lowered in a dry run: a batch has own caches."""
        if spec not in self._mapped:
            state, cache = self.memory(spec, DryRunArena(self.capabilities))
            self._mapped[spec] = self.lower(spec, state=state, cache=cache)
        return self._mapped[spec]

    def memory(self, spec: PassSpec, arena: Arena) -> tuple[State, KvCache]:
        """Return the step and the caches on which a pass runs.

        These are the plan's own, except for a pass over several sequences: it gets new ones, with
        as many sequences as it has rows.

        Args:
            spec: The kind of pass.
            arena: Owner of the buffers of a pass over several sequences.
        """
        if not spec.is_multi_sequence:
            return self.state, self.cache
        rows, kind = self.rows(spec), self.cache
        state = State.create(arena, rows, RING)
        return state, KvCache.allocate(arena, self.graph, kind.context, kind.dtype, rows)

    def lowered(self, spec: PassSpec) -> Pass:
        """Return a pass on the plan's own step and cache, lowered once."""
        if spec not in self._lowered:
            self._lowered[spec] = self.lower(spec)
        return self._lowered[spec]

    def context_of(
        self,
        spec: PassSpec,
        tuning: Tuning | None = None,
        *,
        state: State | None = None,
        grid: Grid | None = None,
    ) -> OpContext:
        """Return the context in which the phases of a pass are lowered; see `lower`."""
        return OpContext(
            state or self.state,
            self.rows(spec),
            self.capabilities,
            self._values,
            self.tuning if tuning is None else tuning,
            spec.is_multi_sequence,
            grid,
        )

    def lower(
        self,
        spec: PassSpec,
        tuning: Tuning | None = None,
        *,
        state: State | None = None,
        cache: KvCache | None = None,
        grid: Grid | None = None,
    ) -> Pass:
        """Lower a pass.

        Args:
            spec: The kind of pass; a pass over several sequences needs both `state` and `cache`.
            tuning: Tuned parameters of kernels; the plan's own when None.
            state: Buffers of the step; the plan's own when None.
            cache: Keys and values; the plan's own when None.
            grid: The workgroups that all phases share, if they run in one dispatch.
        """
        ctx = self.context_of(spec, tuning, state=state, grid=grid)
        return lower(self._model, spec, ctx, cache or self.cache)


def dry_run_plan(
    package: Package,
    capabilities: Capabilities,
    policy: Policy,
    context: int,
    kv_dtype: str,
    tuning: Tuning | None = None,
) -> Plan:
    """Return the plan that a backend would make on such a device, without loading anything."""
    arena = DryRunArena(capabilities)
    return Plan(package, arena, policy, context=context, kv_dtype=kv_dtype, tuning=tuning)


def decisions_for(
    package: Package,
    capabilities: Capabilities,
    policy: Policy,
    context: int,
    kv_dtype: str,
    tuning: Tuning | None = None,
    specs: Sequence[PassSpec] | None = None,
) -> tuple[Decision, ...]:
    """Return the decisions that a backend would make for some passes, without loading anything."""
    return dry_run_plan(package, capabilities, policy, context, kv_dtype, tuning).decisions(specs)
