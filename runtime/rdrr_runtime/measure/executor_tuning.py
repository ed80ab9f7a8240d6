"""Compare a decode pass in one dispatch, on several grids, with the same pass as dispatches.

A grid is a candidate like the parameters of a kernel: its pass must compute the logits of the
dispatches, and it wins only if it is faster than they are by more than the noise, in two
measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import DeviceArena, arena
from rdrr_device.timestamps import Timer, warm_up
from rdrr_device.tuning import Tuning

from rdrr_runtime.compile.pass_spec import DECODE, PREFILL
from rdrr_runtime.exec.executor import DispatchExecutor, Prepared
from rdrr_runtime.exec.output_comparison import INT8_TOLERANCE, distance
from rdrr_runtime.exec.persistent.choice import Persistence, persistent_executor
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.timing import InterleavedTimer, Times, better, median_of
from rdrr_runtime.measure.tuned import ExecutorTimes, GridTrial, Verdict
from rdrr_runtime.measure.tuner import Setting
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.sequences.step import Step

F32 = npt.NDArray[np.float32]


def tune_executor(setting: Setting, tuning: Tuning, grids: Sequence[Grid]) -> ExecutorTimes:
    """Time the decode pass of a model as dispatches, and in one dispatch on each grid.

    Args:
        setting: The model and the device.
        tuning: Tuned parameters of kernels, which both ways of running use.
        grids: Grids to try.

    Raises:
        DeviceError: The device has no timestamps, or too little memory.
    """
    with arena(setting.device, "tune executor") as buffers:
        plan = setting.plan(buffers, tuning)
        return _Comparison(setting, plan, buffers).compare(grids)


@dataclass
class _Comparison:
    """A loaded model whose decode pass runs in several ways.

    Attributes:
        setting: The model and the device.
        plan: The model laid out in memory.
        buffers: Owner of further buffers.
    """

    setting: Setting
    plan: Plan
    buffers: DeviceArena

    def __post_init__(self) -> None:
        """Put a prompt into the cache."""
        device, plan = self.setting.device, self.plan
        self._timer = Timer(device)
        self._step = Step(device, plan.state)
        self._base = min(plan.rows(PREFILL), self.setting.context - 1)
        self._ids = [(at * 7919 + 1) % plan.graph.vocab_size for at in range(self._base + 1)]
        self._step.write(self._ids[:-1], 0)
        launch = DispatchExecutor(device)
        launch.run(launch.prepare(plan.lowered(PREFILL).body), self._base)

    def compare(self, grids: Sequence[Grid]) -> ExecutorTimes:
        """Try the grids."""
        device, decode = self.setting.device, self.plan.lowered(DECODE)
        launch = DispatchExecutor(device)
        # Without the argmax, since it would advance the step for the following runs.
        launched = launch.prepare(decode.phases[:-1])
        reference = self._logits(launch, launched)
        warm_up(device, self._timer, [launched], 1)
        alternatives: dict[Grid | None, Prepared] = {None: launched}
        executors: dict[Grid, PersistentExecutor] = {}
        verdicts = dict.fromkeys(grids, Verdict.FAILED)
        for grid in grids:
            executor, _ = persistent_executor(self.plan, self.buffers, Persistence((grid,), ""))
            if executor is None:
                continue
            whole = executor.on_grid(self.plan.decode)
            prepared = executor.prepare_without(whole, whole.phases[-1:])
            # Activations that are rounded to int8 otherwise are no fault.
            if distance(reference, self._logits(executor, prepared)) <= INT8_TOLERANCE:
                verdicts[grid] = Verdict.NO_BETTER
                alternatives[grid], executors[grid] = prepared, executor
            else:
                verdicts[grid] = Verdict.WRONG
        times = self._timing.times(alternatives)
        for grid, executor in executors.items():
            if executor.has_given_up():  # its passes did nothing from then on
                verdicts[grid] = Verdict.FAILED
                del times[grid]
        chosen = self._winner(times, alternatives)
        if chosen is not None and executors[chosen].has_given_up():
            verdicts[chosen], chosen = Verdict.FAILED, None
        if chosen is not None:
            verdicts[chosen] = Verdict.WON
        trials = tuple(
            GridTrial(grid, verdict, median_of(times[grid]) if grid in times else 0.0)
            for grid, verdict in verdicts.items()
        )
        return ExecutorTimes(median_of(times[None]), trials, chosen)

    def _winner(
        self, times: Mapping[Grid | None, Times], alternatives: Mapping[Grid | None, Prepared]
    ) -> Grid | None:
        """Return the fastest grid if two measurements confirm it; None for dispatches."""
        best = min(times, key=lambda grid: median_of(times[grid]))
        if best is None or not better(times[best], times[None]):
            return None
        again = self._timing.times({grid: alternatives[grid] for grid in (None, best)})
        return best if better(again[best], again[None]) else None

    def _logits(self, executor: DispatchExecutor, prepared: Prepared) -> F32:
        device, logits = self.setting.device, self.plan.lowered(DECODE).logits
        device.clear(logits)
        self._reset()
        executor.run(prepared, 1)
        return device.read(logits).view(np.float32)

    @property
    def _timing(self) -> InterleavedTimer:
        setting = self.setting
        return InterleavedTimer(setting.device, self._timer, 1, self._reset, setting.rounds)

    def _reset(self) -> None:
        self._step.write(self._ids[-1:], self._base)
