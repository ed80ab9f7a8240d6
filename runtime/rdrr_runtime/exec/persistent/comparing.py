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
        self._passes = 0
        self._compared: TokenPass | None = None
        self._timer = _timer(candidate.device)
        self._decided = self._timer is None  # without a clock the ways cannot be compared
        self._is_faster = False

    @property
    def gave_up(self) -> BufferSlice | None:
        """See `Executor.gave_up`."""
        return self._candidate.gave_up if self._is_faster else None

    def another(self, arena: Arena) -> ComparingExecutor:
        """See `Executor.another`; it compares its own passes."""
        return ComparingExecutor(self._candidate.another(arena))

    def at_once(self, prepared: Prepared) -> int:
        """See `Executor.at_once`."""
        replacement = self._replaced(prepared)
        return 1 if replacement is None else self._candidate.at_once(replacement)

    def recover(self) -> None:
        """See `Executor.recover`."""
        if self._is_faster:
            self._candidate.recover()

    def prepare_whole(self, token_pass: TokenPass) -> Prepared:
        """See `Executor.prepare_whole`; the phases are launched until the ways were compared."""
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
            self._passes += times
            if not self._decided:
                self._go_on(launched.token_pass)
        replaced = self._replaced(prepared)
        if replaced is None:
            super().run(prepared, rows, times)
        else:
            self._candidate.run(replaced, rows, times)

    def settle(self) -> None:
        """See `Executor.settle`; does nothing before the first decode pass."""
        if self._decided or self._timer is None or not self._passes:
            return
        passes = (
            launched.token_pass
            for launched in self._launched.values()
            if launched.token_pass is not None
        )
        token_pass = self._compared or self._begin(next(passes))
        if token_pass is None:
            return
        self._candidate.finish_build(token_pass)
        warm_up(self.device, self._timer, [self._without_end(token_pass)], 1)
        self._decide(token_pass)

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
        launched = self._launched.get(id(prepared)) if self._is_faster else None
        return None if launched is None else launched.replaced

    def _go_on(self, token_pass: TokenPass) -> None:
        """Begin to compile, or compare, if it is time to."""
        if self._compared is None:
            if self._passes >= PASSES:
                self._begin(token_pass)
        elif self._candidate.is_built(self._compared):
            self._decide(self._compared)

    def _begin(self, token_pass: TokenPass) -> TokenPass | None:
        """Begin to compile a pass in one dispatch; None if it cannot be lowered for that."""
        try:
            self._candidate.begin_build(token_pass)
        except RdrrError as error:
            _LOG.info("decode passes are launched phase by phase: %s", error)
            self._decided = True
            return None
        self._compared = token_pass
        return token_pass

    def _decide(self, token_pass: TokenPass) -> None:
        """Run the pass that is due both ways, and keep the faster one."""
        self._decided = True
        try:
            self._is_faster = self._compare(token_pass)
        except DeviceError as error:
            _LOG.info("decode passes stay dispatches, since they could not be compared: %s", error)

    def _compare(self, token_pass: TokenPass) -> bool:
        """Return whether a pass gives the same logits in one dispatch, and is faster."""
        assert self._timer is not None, "nothing is compared without a clock"
        executor = self._candidate
        refused = executor.refusal(token_pass)
        if refused is not None:
            _LOG.info("decode passes are launched phase by phase: %s", refused)
            return False
        on_grid, launched = executor.on_grid(token_pass), self._without_end(token_pass)
        whole = executor.prepare_without(on_grid, on_grid.phases[-1:])
        error = self._distance(token_pass.lowered.logits, launched, whole)
        if not error <= INT8_TOLERANCE:  # NaN is no agreement either
            _LOG.info(
                "logits of a pass in one dispatch differ by %.4f of the largest, and at most %.4f "
                "is expected of roundings, so decode passes stay dispatches",
                error,
                INT8_TOLERANCE,
            )
            return False
        timer = InterleavedTimer(self.device, self._timer, 1, lambda: None, ROUNDS)
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

        The pass chooses the most probable token, whatever the generation samples.
        """
        return self.prepare(token_pass.lowered.phases[:-1])

    def _distance(self, logits: BufferSlice, launched: Prepared, whole: Prepared) -> float:
        """Return the difference of the logits of both ways, relative to the largest logit."""
        outputs = []
        for prepared in (launched, whole):
            self.device.submit(prepared, 1)
            outputs.append(self.device.read(logits).view(np.float32))
        return distance(*outputs)


def _timer(device: Device) -> Timer | None:
    """Return a timer; None if the device has no timestamps."""
    try:
        return Timer(device)
    except DeviceError:
        return None
