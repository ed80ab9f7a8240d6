"""The passes of a plan, prepared by an executor on first use and replayed from then on.

`rdrr_runtime.sequences` decides which pass runs when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.compile.pass_spec import DECODE, Logits, PassSpec
from rdrr_runtime.exec.executor import Executor, Prepared, TokenPass
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.phase import Phase


class PreparedPass:
    """A pass that an executor can run; each part of it is prepared on first use.

    Args:
        lowered: The pass as lists of phases.
        executor: Prepares and runs the phases.
        one: The same pass, if it may run in one dispatch; None to launch its phases.
    """

    def __init__(self, lowered: Pass, executor: Executor, one: TokenPass | None = None) -> None:
        self.lowered = lowered
        self._executor = executor
        self._one = one

    @property
    def rows(self) -> int:
        """Largest number of token rows."""
        return self.lowered.rows

    @property
    def logits(self) -> BufferSlice:
        """Buffer of the logits, or of the hidden states in a pass without logits, see `Pass`."""
        return self.lowered.logits

    @property
    def picks(self) -> BufferSlice | None:
        """Buffer of the picks, (u32 id, f32 entropy) [rows]; None in a pass without picks."""
        return self.lowered.picks

    @cached_property
    def body(self) -> Prepared:
        """The phases up to the last layer."""
        return self._executor.prepare(self.lowered.body)

    @cached_property
    def head(self) -> Prepared:
        """The head, to be run for the last rows of the body."""
        return self._executor.prepare(self.lowered.head)

    @cached_property
    def to_logits(self) -> Prepared:
        """Body and head."""
        return self._executor.prepare((*self.lowered.body, *self.lowered.head))

    @cached_property
    def to_picks(self) -> Prepared:
        """Head and picks, to be run for the last rows of the body."""
        return self._executor.prepare((*self.lowered.head, *self.lowered.sample))

    @cached_property
    def to_token(self) -> Prepared:
        """The whole pass, up to the next token; feeds run it."""
        return self._whole(None)

    @cached_property
    def before_sampling(self) -> Prepared:
        """Body and head like `to_logits`, for `Executor.prepare_behind`; feeds run it."""
        return self._whole(())

    def to_sampled(self, sampling: Sequence[Phase]) -> Prepared:
        """Return body and head, and phases that choose the next token behind them."""
        return self._whole(tuple(sampling))

    def _whole(self, sampling: tuple[Phase, ...] | None) -> Prepared:
        if self._one is not None:
            return self._executor.prepare_whole(replace(self._one, sampling=sampling))
        sample = self.lowered.sample if sampling is None else sampling
        return self._executor.prepare((*self.lowered.body, *self.lowered.head, *sample))


class PreparedPasses:
    """The passes of a plan that run on its own state and caches.

    Args:
        plan: The plan.
        executor: Prepares and runs the passes.

    Attributes:
        keeps_hidden: Whether the passes keep the hidden states of their rows for a draft head.
    """

    def __init__(self, plan: Plan, executor: Executor) -> None:
        self.executor = executor
        self.keeps_hidden = False
        self._plan = plan
        self._passes: dict[PassSpec, PreparedPass] = {}

    @property
    def cache(self) -> KvCache:
        """The keys and values on which the passes run."""
        return self._plan.cache

    def get(self, spec: PassSpec) -> PreparedPass:
        """Return a pass; the same object each time."""
        if self.keeps_hidden and spec.logits is not Logits.NONE:
            spec = replace(spec, keeps_hidden=True)
        if spec not in self._passes:
            token_pass = self._plan.decode if spec == DECODE else None
            self._passes[spec] = PreparedPass(self._plan.lowered(spec), self.executor, token_pass)
        return self._passes[spec]

    def consecutive(self, ids: int) -> list[PreparedPass]:
        """Return the passes that run consecutive ids of the single sequence, in order."""
        return [self.get(spec) for spec in self._plan.consecutive(ids, decodes=True)]
