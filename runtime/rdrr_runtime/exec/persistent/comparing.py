"""An executor that launches phases until one dispatch a pass has been found to be faster.

Linking and compiling a whole decode pass takes a second or more, which is worth it only for a
process that decodes for long. So it begins after some passes, beside those that follow. When it is
done, the pass that is due runs both ways, and the faster way stays. Nothing is lost by that: a pass
may run any number of times without its last phase, which moves to the next slot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.timestamps import Timer, warm_up
from rdrr_format.errors import DeviceError, RdrrError

from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.agreement import INT8_TOLERANCE
from rdrr_runtime.exec.executor import DispatchExecutor, Prepared
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.timing import InterleavedTimer, better, median_of
from rdrr_runtime.phases.phase import Phase

_LOG = logging.getLogger(__name__)

PASSES = 2048
"""Passes after which a process is taken to decode for long. While other threads link and compile,
decoding is slower: on an H100 llama-1b lost half a second, which it wins back in 3,000 tokens."""

ROUNDS = 5
"""Measurements of each way, one pass each: about 10 ms for a model of 1 billion weights."""


@dataclass(frozen=True)
class _Candidate:
    """The pass in one dispatch.

    Attributes:
        executor: Runs it.
        phases: Its phases, for the workgroups of the dispatch.
    """

    executor: PersistentExecutor
    phases: tuple[Phase, ...]


class ComparingExecutor(DispatchExecutor):
    """An executor that compares two ways of running decode passes; see the module docstring.

    Args:
        plan: The model.
        arena: Owner of further buffers.
        wanted: The grids of one dispatch, of which the first is tried.
    """

    def __init__(self, plan: Plan, arena: Arena, wanted: Persistence) -> None:
        super().__init__(plan.device)
        self._plan, self._arena, self._wanted = plan, arena, wanted
        self._launched: Prepared = ()
        self._parts: tuple[Phase, ...] = ()
        self._passes = 0
        self._candidate: _Candidate | None = None
        self._chosen: tuple[PersistentExecutor, Prepared] | None = None
        self._timer = _timer(plan.device)
        self._decided = self._timer is None  # without a clock the ways cannot be compared

    @property
    def at_once(self) -> int:
        """See `Executor.at_once`."""
        return 1 if self._chosen is None else self._chosen[0].at_once

    @property
    def gave_up(self) -> BufferSlice | None:
        """See `Executor.gave_up`."""
        return None if self._chosen is None else self._chosen[0].gave_up

    def recover(self) -> None:
        """See `Executor.recover`."""
        if self._chosen is not None:
            self._chosen[0].recover()

    def prepare_whole(self, whole: Sequence[Phase], parts: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare_whole`; the parts are launched until the ways were compared."""
        del whole
        self._parts = tuple(parts)
        self._launched = self.prepare(parts)
        return self._launched

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """See `Executor.run`."""
        if prepared is not self._launched:
            super().run(prepared, rows, times)
            return
        self._passes += times
        if not self._decided:
            self._go_on()
        if self._chosen is None:
            super().run(prepared, rows, times)
        else:
            executor, whole = self._chosen
            executor.run(whole, rows, times)

    def settle(self) -> None:
        """See `Executor.settle`; does nothing before the first decode pass."""
        if self._decided or self._timer is None or not self._passes:
            return
        candidate = self._candidate or self._begin()
        if candidate is None:
            return
        candidate.executor.finish_build(candidate.phases)
        warm_up(self.device, self._timer, [self._launched[:-1]], 1)
        self._decide(candidate)

    def _go_on(self) -> None:
        """Begin to compile, or compare, if it is time to."""
        candidate = self._candidate
        if candidate is None:
            if self._passes >= PASSES:
                self._begin()
        elif candidate.executor.is_built(candidate.phases):
            self._decide(candidate)

    def _begin(self) -> _Candidate | None:
        """Begin to compile the pass in one dispatch; None if it cannot be lowered for that."""
        grid = next(iter(self._wanted.grids))
        executor = PersistentExecutor(self.device, self._arena, grid, self._wanted.polls)
        try:
            phases = self._plan.lower(DECODE, grid=grid).phases
        except RdrrError as error:
            _LOG.info("decode passes are launched phase by phase: %s", error)
            self._decided = True
            return None
        executor.begin_build(phases)
        self._candidate = _Candidate(executor, phases)
        return self._candidate

    def _decide(self, candidate: _Candidate) -> None:
        """Run the pass that is due both ways, and keep the faster one."""
        self._decided = True
        try:
            self._compare(candidate)
        except DeviceError as error:
            _LOG.info("decode passes stay dispatches, since they could not be compared: %s", error)

    def _compare(self, candidate: _Candidate) -> None:
        assert self._timer is not None, "nothing is compared without a clock"
        executor, phases = candidate.executor, candidate.phases
        refused = executor.refusal(phases)
        if refused is not None:
            _LOG.info("decode passes are launched phase by phase: %s", refused)
            return
        launched = self._launched[:-1]
        whole = executor.prepare_without(phases, phases[-1:])
        distance = self._distance(launched, whole)
        if not distance <= INT8_TOLERANCE:  # NaN is no agreement either
            _LOG.info(
                "logits of a pass in one dispatch differ by %.4f of the largest, and at most %.4f "
                "is expected of roundings, so decode passes stay dispatches",
                distance,
                INT8_TOLERANCE,
            )
            return
        timer = InterleavedTimer(self.device, self._timer, 1, lambda: None, ROUNDS)
        before, after = timer.interleaved([launched, whole])
        is_faster = better(after, before) and not executor.has_given_up()
        _LOG.info(
            "a decode pass takes %.0f us as dispatches and %.0f us in one dispatch, so it runs %s",
            1e6 * median_of(before),
            1e6 * median_of(after),
            "in one" if is_faster else "as dispatches",
        )
        if is_faster:
            self._chosen = executor, executor.prepare_whole(phases, self._parts)

    def _distance(self, launched: Prepared, whole: Prepared) -> float:
        """Return the largest difference of the logits of both ways, by the largest logit."""
        logits = self._plan.lowered(DECODE).logits
        found = []
        for one in (launched, whole):
            self.device.submit(one, 1)
            found.append(self.device.read(logits).view(np.float32))
        largest = max(float(np.abs(found[0]).max()), float(np.finfo(np.float32).tiny))
        return float(np.abs(found[1] - found[0]).max()) / largest


def _timer(device: Device) -> Timer | None:
    """Return a timer; None if the device has no timestamps."""
    try:
        return Timer(device)
    except DeviceError:
        return None
