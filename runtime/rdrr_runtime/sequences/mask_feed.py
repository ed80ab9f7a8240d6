"""The GPU feed of windows with masks: passes that run ahead of the readback of their tokens.

A pass chooses which masks it fills and writes the window of the next pass itself
(`phases/sampling/fill_masks.py`). The host does not know how many rows a pass ahead of readback
has, so the pass is launched for as many as a window can have; rows that it does not have are
without effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.readback import Fetch

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.compile.pass_spec import SMALL_WINDOW, WINDOW, PassSpec
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.sampling.fill_masks import (
    fill_masks,
    pack_rules,
    record_bytes,
    rules_bytes,
    unpack,
)
from rdrr_runtime.sampling.masks import FilledTokens, MaskRules
from rdrr_runtime.sequences.gpu_sequences import GpuSequences


@dataclass(frozen=True)
class _MaskPass:
    """A pass over windows of one size.

    Attributes:
        prepared: The pass, up to the window of the next one.
        rules: Buffer of the rules.
        record: Buffer in which a pass leaves its new tokens.
    """

    prepared: Prepared
    rules: BufferSlice
    record: BufferSlice


class GpuMasks:
    """The passes that fill masks after the single sequence, each made when it is first needed.

    Args:
        plan: The model.
        executor: Runs the passes.
        arena: Owner of the buffers of the rules and records.
        sequence: The single sequence, whose step the passes read.
        ahead: Passes to submit before earlier ones are collected.
    """

    def __init__(
        self, plan: Plan, executor: Executor, arena: Arena, sequence: GpuSequences, ahead: int
    ) -> None:
        self.ahead = ahead
        self._plan, self._executor, self._arena, self._sequence = plan, executor, arena, sequence
        self._passes: dict[int, _MaskPass] = {}

    def feed(self, base: int, rules: MaskRules, count: int) -> GpuMaskFeed | None:
        """Return a feed, see `MaskFillingBackend.mask_feed`."""
        spec = self._spec(rules.window)
        if spec is None:
            return None
        if rules.window not in self._passes:
            self._passes[rules.window] = self._make(spec, rules.window)
        mask_pass, window = self._passes[rules.window], rules.window
        first = min(window, count)
        self._executor.device.write(mask_pass.rules, pack_rules(rules, count - first))
        self._sequence.step.write([rules.mask_id] * first, base, last_n=first, launched=2 * window)
        check = self._sequence.faults.check_ids
        return GpuMaskFeed(self._executor, mask_pass, window, count, self.ahead, check)

    def _spec(self, window: int) -> PassSpec | None:
        """Return the smallest pass that holds a window and the tokens before it."""
        kinds = (SMALL_WINDOW, WINDOW)
        return next((kind for kind in kinds if 2 * window <= self._plan.rows(kind)), None)

    def _make(self, spec: PassSpec, window: int) -> _MaskPass:
        lowered, arena = self._plan.lowered(spec), self._arena
        rules = arena.empty(f"mask rules {window}", rules_bytes(window))
        record = arena.empty(f"filled tokens {window}", record_bytes(window))
        phases = _with_masks(lowered, self._plan.state, rules, record, window)
        return _MaskPass(self._executor.prepare(phases), rules, record)


def _with_masks(
    lowered: Pass, state: State, rules: BufferSlice, record: BufferSlice, window: int
) -> list[Phase]:
    """Return the phases of a window pass, then those that fill its masks.

    Only masks need logits, and there are at most `window` of them, half of the rows.
    """
    assert lowered.picks is not None, "window passes have picks"
    of_masks = [
        replace(phase, work=replace(phase.work, most_rows=window))
        for phase in (*lowered.head, *lowered.sample)
    ]
    filling = fill_masks(state, lowered.picks, rules, record, window=window, label="fill masks")
    return [*lowered.body, *of_masks, *filling]


class GpuMaskFeed:
    """A feed of windows with masks, see `rdrr_runtime.backend.MaskFeed`.

    Args:
        executor: Runs the passes.
        made: The pass and its buffers.
        window: Positions in the window.
        count: Number of tokens that the sequence may still get.
        ahead: Passes to submit before earlier ones are collected.
        check: Raises an error if an id is marked.
    """

    def __init__(
        self,
        executor: Executor,
        mask_pass: _MaskPass,
        window: int,
        count: int,
        ahead: int,
        check: Callable[[Sequence[int]], None],
    ) -> None:
        self.ahead = ahead
        self._check = check
        self._executor, self._pass = executor, mask_pass
        self._window, self._left = window, count
        self._next_rows = min(window, count)
        self._copies: deque[Fetch] = deque()

    def submit(self) -> None:
        """See `MaskFeed.submit`."""
        rows = 2 * self._window if self._copies else self._next_rows
        self._executor.run(self._pass.prepared, rows)
        # In the order of the queue, the next pass writes its record behind this copy.
        self._copies.append(self._executor.device.fetch(self._pass.record))

    def collect(self) -> FilledTokens:
        """See `MaskFeed.collect`.

        Raises:
            GenerationError: The logits of a token are not finite.
        """
        filled = unpack(self._copies.popleft().collect()[0])
        self._check(filled.ids)
        self._left -= len(filled.ids)
        # The next pass runs the new tokens, and a window of what the sequence still lacks.
        self._next_rows = max(1, len(filled.ids) + min(self._window, self._left))
        return filled
