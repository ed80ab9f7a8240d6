"""An executor that launches phases until one dispatch a pass has been found to be faster.

Linking and compiling a whole decode pass takes a second or more, which is worth it only for a
process that decodes for long. So it begins after some passes, beside those that follow. When it is
done, the pass that is due runs both ways, and the faster way stays. Nothing is lost by that: a pass
may run any number of times without its last phase, which moves to the next slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.timestamps import Timer, warm_up
from rdrr_format.errors import DeviceError, RdrrError

from rdrr_runtime.exec.executor import DispatchExecutor, Prepared, TokenPass
from rdrr_runtime.exec.output_comparison import INT8_TOLERANCE, distance
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.timing import InterleavedTimer, better, median_of
from rdrr_runtime.phases.phase import Phase

_LOG = logging.getLogger(__name__)

PASSES = 2048
"""Passes after which a process is taken to decode for long. While other threads link and compile,
decoding is slower: on an H100 llama-1b lost half a second, which it wins back in 3,000 tokens."""

ROUNDS = 5
"""Measurements of each way, one pass each: about 10 ms for a model of 1 billion weights."""


@dataclass
class _Launched:
    """Phases that were prepared as dispatches.

    Attributes:
        prepared: Their dispatches.
        replacement: Prepares what replaces them if one dispatch a pass is faster.
        token_pass: The pass that the phases are; None if they run behind one.
    """

    prepared: Prepared
    replacement: Callable[[], Prepared]
    token_pass: TokenPass | None = None

    @cached_property
    def replaced(self) -> Prepared:
        """What replaces the dispatches, made when it is first needed."""
        return self.replacement()


@dataclass
class _Comparison:
    """How far the comparison of a pass is.

    Attributes:
        token_pass: The pass.
        passes: How often it ran.
        rows: Token rows that it had last.
        is_building: Whether its kernel is being compiled.
        decided: Whether it is known how the pass runs.
        is_faster: Whether it runs in one dispatch.
    """

    token_pass: TokenPass
    passes: int = 0
    rows: int = 1
    is_building: bool = False
    decided: bool = False
    is_faster: bool = False


class ComparingExecutor(DispatchExecutor):
    """An executor that compares two ways of running decode passes; see the module docstring.

    Passes that sample differ in the phases behind the logits, so one comparison holds for all.

    Args:
        candidate: Runs the passes in one dispatch.
    """

    def __init__(self, candidate: PersistentExecutor) -> None:
        super().__init__(candidate.device)
        self._candidate = candidate
        self._launched: dict[int, _Launched] = {}
        self._comparisons: dict[int, _Comparison] = {}  # by the id of the lowered pass
        self._latest: _Comparison | None = None
        self._timer = _timer(candidate.device)  # without a clock the ways cannot be compared

    @property
    def _any_is_faster(self) -> bool:
        return any(comparison.is_faster for comparison in self._comparisons.values())

    @property
    def gave_up(self) -> BufferSlice | None:
        """See `Executor.gave_up`."""
        return self._candidate.gave_up if self._any_is_faster else None

    def another(self, arena: Arena) -> ComparingExecutor:
        """See `Executor.another`; it compares its own passes."""
        return ComparingExecutor(self._candidate.another(arena))

    def at_once(self, prepared: Prepared) -> int:
        """See `Executor.at_once`."""
        replacement = self._replaced(prepared)
        return 1 if replacement is None else self._candidate.at_once(replacement)

    def recover(self) -> None:
        """See `Executor.recover`."""
        if self._any_is_faster:
            self._candidate.recover()

    def prepare_whole(self, token_pass: TokenPass) -> Prepared:
        """See `Executor.prepare_whole`; the phases are launched until the ways were compared."""
        self._comparisons.setdefault(id(token_pass.lowered), _Comparison(token_pass))
        return self._launch(
            token_pass.phases, partial(self._candidate.prepare_whole, token_pass), token_pass
        )

    def prepare_behind(self, phases: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare_behind`."""
        return self._launch(phases, partial(self._candidate.prepare_behind, phases))

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """See `Executor.run`."""
        launched = self._launched.get(id(prepared))
        if launched is not None and launched.token_pass is not None:
            comparison = self._latest = self._comparisons[id(launched.token_pass.lowered)]
            comparison.passes += times
            comparison.rows = rows
            if self._timer is not None and not comparison.decided:
                self._go_on(comparison)
        replaced = self._replaced(prepared)
        if replaced is None:
            super().run(prepared, rows, times)
        else:
            self._candidate.run(replaced, rows, times)

    def settle(self) -> None:
        """See `Executor.settle`; does nothing before the first decode pass."""
        comparison = self._latest
        if comparison is None or comparison.decided or self._timer is None:
            return
        if not comparison.is_building:
            self._begin(comparison)
        if comparison.decided:
            return
        token_pass = comparison.token_pass
        self._candidate.finish_build(token_pass)
        warm_up(self.device, self._timer, [self._without_end(token_pass)], comparison.rows)
        self._decide(comparison)

    def _launch(
        self,
        phases: Sequence[Phase],
        replacement: Callable[[], Prepared],
        token_pass: TokenPass | None = None,
    ) -> Prepared:
        """Return dispatches, and remember what may replace them."""
        prepared = self.prepare(phases)
        self._launched[id(prepared)] = _Launched(prepared, replacement, token_pass)
        return prepared

    def _replaced(self, prepared: Prepared) -> Prepared | None:
        """Return what replaces dispatches; None if they are to be launched."""
        launched = self._launched.get(id(prepared))
        if launched is None:
            return None
        if launched.token_pass is None:
            is_faster = self._any_is_faster
        else:
            is_faster = self._comparisons[id(launched.token_pass.lowered)].is_faster
        return launched.replaced if is_faster else None

    def _go_on(self, comparison: _Comparison) -> None:
        """Begin to compile, or compare, if it is time to."""
        if not comparison.is_building:
            if comparison.passes >= PASSES:
                self._begin(comparison)
        elif self._candidate.is_built(comparison.token_pass):
            self._decide(comparison)

    def _begin(self, comparison: _Comparison) -> None:
        """Begin to compile a pass in one dispatch, unless it cannot be lowered for that."""
        try:
            self._candidate.begin_build(comparison.token_pass)
            comparison.is_building = True
        except RdrrError as error:
            _LOG.info("decode passes are launched phase by phase: %s", error)
            comparison.decided = True

    def _decide(self, comparison: _Comparison) -> None:
        """Run the pass that is due both ways, and keep the faster one."""
        comparison.decided = True
        try:
            comparison.is_faster = self._compare(comparison.token_pass, comparison.rows)
        except DeviceError as error:
            _LOG.info("decode passes stay dispatches, since they could not be compared: %s", error)

    def _compare(self, token_pass: TokenPass, rows: int) -> bool:
        """Return whether a pass gives the same logits in one dispatch, and is faster."""
        assert self._timer is not None, "nothing is compared without a clock"
        executor = self._candidate
        refused = executor.refusal(token_pass)
        if refused is not None:
            _LOG.info("decode passes are launched phase by phase: %s", refused)
            return False
        on_grid, launched = executor.on_grid(token_pass), self._without_end(token_pass)
        whole = executor.prepare_without(on_grid, on_grid.phases[-1:])
        error = self._distance(token_pass.lowered.logits, (launched, whole), rows)
        if not error <= INT8_TOLERANCE:  # NaN is no agreement either
            _LOG.info(
                "logits of a pass in one dispatch differ by %.4f of the largest, and at most %.4f "
                "is expected of roundings, so decode passes stay dispatches",
                error,
                INT8_TOLERANCE,
            )
            return False
        timer = InterleavedTimer(self.device, self._timer, rows, lambda: None, ROUNDS)
        before, after = timer.interleaved([launched, whole])
        is_faster = better(after, before) and not executor.has_given_up()
        _LOG.info(
            "a decode pass takes %.0f us as dispatches and %.0f us in one dispatch, so it runs %s",
            1e6 * median_of(before),
            1e6 * median_of(after),
            "in one" if is_faster else "as dispatches",
        )
        return is_faster

    def _without_end(self, token_pass: TokenPass) -> Prepared:
        """Return the dispatches of a pass without the last, so that it may run any number of times.

        The pass chooses the most probable token, whatever the generation samples; that of several
        rows ends with the logits, as in one dispatch.
        """
        lowered = token_pass.lowered
        return self.prepare(lowered.phases[:-1] if lowered.picks is None else lowered.linkable)

    def _distance(self, logits: BufferSlice, ways: Sequence[Prepared], rows: int) -> float:
        """Return the difference of the logits of two ways, relative to the largest logit."""
        outputs = []
        for prepared in ways:
            self.device.submit(prepared, rows)
            outputs.append(self.device.read(logits).view(np.float32))
        return distance(*outputs)


def _timer(device: Device) -> Timer | None:
    """Return a timer; None if the device has no timestamps."""
    try:
        return Timer(device)
    except DeviceError:
        return None
