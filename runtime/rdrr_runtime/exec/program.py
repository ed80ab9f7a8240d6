"""A plan's passes, made ready by an executor when they are first needed, and replayed since.

This module does not decide what to run when; `rdrr_runtime.sequences` does.
"""

from __future__ import annotations

from functools import cached_property

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.compile.lower import Pass
from rdrr_runtime.compile.pass_spec import PassSpec
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.plan import Plan


class PreparedPass:
    """A pass that an executor can run: each part of it is prepared when it is first needed.

    Args:
        lowered: The pass.
        executor: What runs it.
    """

    def __init__(self, lowered: Pass, executor: Executor) -> None:
        self.lowered = lowered
        self._executor = executor

    @property
    def rows(self) -> int:
        """Most token rows."""
        return self.lowered.rows

    @property
    def logits(self) -> BufferSlice:
        """Logits, f32 [1 or rows, vocab]."""
        return self.lowered.logits

    @property
    def picks(self) -> BufferSlice | None:
        """Of a pass with picks: (u32 id, f32 entropy) [rows]."""
        return self.lowered.picks

    @cached_property
    def body(self) -> Prepared:
        """Everything up to the last layer."""
        return self._executor.prepare(self.lowered.body)

    @cached_property
    def head(self) -> Prepared:
        """The head, for a tail of the rows that the body had."""
        return self._executor.prepare(self.lowered.head)

    @cached_property
    def to_logits(self) -> Prepared:
        """Body and head."""
        return self._executor.prepare((*self.lowered.body, *self.lowered.head))

    @cached_property
    def to_picks(self) -> Prepared:
        """Head and what follows, for a tail of the rows that the body had."""
        return self._executor.prepare((*self.lowered.head, *self.lowered.sample))

    @cached_property
    def to_token(self) -> Prepared:
        """All of it, up to the next token."""
        return self._executor.prepare(self.lowered.phases)


class Program:
    """The passes of a plan that run on its own state and caches.

    Args:
        plan: What to run.
        executor: What runs it.
    """

    def __init__(self, plan: Plan, executor: Executor) -> None:
        self.executor = executor
        self._plan = plan
        self._passes: dict[PassSpec, PreparedPass] = {}

    def get(self, spec: PassSpec) -> PreparedPass:
        """Return a pass, made ready once."""
        if spec not in self._passes:
            self._passes[spec] = PreparedPass(self._plan.lowered(spec), self.executor)
        return self._passes[spec]
