"""The tuner: it times parameters of kernels on a model's own shapes, and keeps the fastest.

A candidate runs on the model's weights and on the values that its passes left in memory, over all
layers at once, so that the GPU's caches behave as in generation. It must give the same results as
the default, within a tolerance. It wins if its median is faster by more than the noise, in two
measurements. In the end whole passes are compared. Where the winners are stored is not decided
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rdrr_device.arena import Arena, arena
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_device.timestamps import Timer, warm_up
from rdrr_device.tuning import AnyTuningKey, Params, Tuning
from rdrr_format.errors import DeviceError
from rdrr_manifests.package import Package

from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.compile.pass_spec import DECODE, PREFILL, PassSpec
from rdrr_runtime.exec.executor import DispatchExecutor, Prepared
from rdrr_runtime.exec.output_comparison import Bytes, Check
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.timing import InterleavedTimer, Times, better, scatter
from rdrr_runtime.measure.tuned import Outcome, PassTimes, Trial, Tuned, Verdict
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.sequences.step import Step

SLOWER = 0.01
"""Fraction of the time by which a whole pass may be slower with the winners; more if measurements
scatter more."""

LOADED_FIRST = (PREFILL, DECODE)
"""The passes that every loaded model has; prefill comes first, since it fills the cache."""

Progress = Callable[[str, int, int], None]
"""Called with the name of a tuning key, its number from 0, and how many there are."""


@dataclass(frozen=True)
class Setting:
    """The model and device to tune, and what to tune of it.

    Attributes:
        package: The package, with its weights.
        device: The device to run on.
        policy: Hints.
        context: Slots of the key-value cache.
        kv_dtype: Type of the cache's elements.
        ops: The ops to tune, from `rdrr_device.tuning.OPS`.
        rounds: Measurements of each candidate; None for the default of the adapter.
        passes: The passes to tune; prefill must come first, since it fills the cache.
    """

    package: Package
    device: Device
    policy: Policy
    context: int
    kv_dtype: str
    ops: frozenset[str]
    rounds: int | None = None
    passes: tuple[PassSpec, ...] = LOADED_FIRST

    def plan(self, buffers: Arena, tuning: Tuning | None = None) -> Plan:
        """Return the plan of the model in an arena, by default with the default parameters."""
        return Plan(
            self.package,
            buffers,
            self.policy,
            context=self.context,
            kv_dtype=self.kv_dtype,
            tuning=tuning,
        )


def tune(setting: Setting, known: Tuning, progress: Progress | None = None) -> Tuned:
    """Find parameters for those tuning keys of a model that have none stored.

    Args:
        setting: The model, the device, and what to tune.
        known: Stored parameters.
        progress: Called before each tuning key.

    Raises:
        DeviceError: The device has no timestamps, or too little memory.
    """
    timer = Timer(setting.device)
    dry_run = setting.plan(DryRunArena(setting.device.capabilities))
    chosen = [
        spec
        for spec in setting.passes
        if not spec.is_multi_sequence or dry_run.cache.supports_batches
    ]
    tuning_keys: dict[str, tuple[PassSpec, AnyTuningKey]] = {}
    for step in chosen:
        for key, pair in _tuning_keys(dry_run, step, setting.ops).items():
            tuning_keys.setdefault(key, pair)
    todo = {
        step: [
            tuning_key
            for key, (where, tuning_key) in tuning_keys.items()
            if where == step and key not in known.entries
        ]
        for step in chosen
    }
    missing = sum(len(missing_keys) for missing_keys in todo.values())
    if not missing:
        return Tuned((), (), len(tuning_keys))
    outcomes: list[Outcome] = []
    passes: list[PassTimes] = []
    with arena(setting.device, "tune") as buffers:
        tuner = _Tuner(setting, timer, setting.plan(buffers), known, buffers)
        for step in chosen:
            if not todo[step]:
                continue
            tuner.begin(step)
            step_outcomes: list[Outcome] = []
            for tuning_key in todo[step]:
                if progress:
                    progress(tuning_key.name, len(outcomes) + len(step_outcomes), missing)
                step_outcomes.append(tuner.try_candidates(step, tuning_key))
            if any(outcome.chosen != outcome.tuning_key.default for outcome in step_outcomes):
                whole, step_outcomes = tuner.whole(step, step_outcomes)
                passes.append(whole)
            outcomes += step_outcomes
    return Tuned(tuple(outcomes), tuple(passes), len(tuning_keys) - missing)


def _tuning_keys(
    plan: Plan, step: PassSpec, ops: frozenset[str]
) -> dict[str, tuple[PassSpec, AnyTuningKey]]:
    """Return the tuning keys of a pass that have candidates, by name, each with its pass."""
    state, cache = plan.memory(step, DryRunArena(plan.capabilities))
    lowered = plan.lower(step, Tuning(), state=state, cache=cache)
    by_name = {
        tuning_key.name: tuning_key for phase in lowered.phases for tuning_key in phase.tuning_keys
    }
    return {
        key: (step, tuning_key)
        for key, tuning_key in by_name.items()
        if tuning_key.candidates and tuning_key.op in ops
    }


def _of(key: str, phases: Iterable[Phase]) -> list[list[Phase]]:
    """Return the runs of consecutive phases that depend on a tuning key."""
    runs: list[list[Phase]] = []
    open_run = False
    for phase in phases:
        depends = any(tuning_key.name == key for tuning_key in phase.tuning_keys)
        if depends and not open_run:
            runs.append([])
        if depends:
            runs[-1].append(phase)
        open_run = depends
    return runs


@dataclass
class _Tuner:
    """A loaded model that is being tuned.

    Attributes:
        setting: The model, the device, and what to tune.
        timer: Measures GPU time.
        plan: The model laid out in memory.
        tuning: The stored parameters and the winners so far.
        buffers: Owner of further buffers.
        base: Slot of the first row of the pass that is tuned.
        spec: The pass that is tuned.
        memory: The step and the caches of this pass.
        ids: Token ids of its rows.
        everything: The whole pass with default parameters, ready to run.
    """

    setting: Setting
    timer: Timer
    plan: Plan
    tuning: Tuning
    buffers: Arena
    base: int = 0
    spec: PassSpec = PREFILL
    memory: tuple[State, KvCache] | None = None
    ids: tuple[int, ...] = ()
    everything: Prepared = ()

    def begin(self, step: PassSpec) -> None:
        """Prepare the tuning of a pass, and run it until the GPU has reached its full clock."""
        self.spec, self.memory = step, self.plan.memory(step, self.buffers)
        filled = self.plan.rows(PREFILL)
        rows = 1 if step.is_multi_sequence else self.plan.rows(step)
        self.base = 0 if step == PREFILL else min(filled, self.setting.context - rows)
        self.ids = tuple(
            (at * 7919 + 1) % self.plan.graph.vocab_size for at in range(self.plan.rows(step))
        )
        self.everything = self._prepare(self._pass(step, Tuning()))
        self._reset()
        warm_up(self.setting.device, self.timer, [self.everything], len(self.ids))

    def _refresh(self) -> None:
        """Run the pass once to restore its values, since measured phases add to them repeatedly."""
        self._reset()
        DispatchExecutor(self.setting.device).run(self.everything, len(self.ids))

    def try_candidates(self, step: PassSpec, tuning_key: AnyTuningKey) -> Outcome:
        """Try the candidates of one tuning key."""
        self._refresh()
        check = Check.of(
            DispatchExecutor(self.setting.device),
            self.plan,
            self._runs(step, tuning_key, tuning_key.default)[0],
        )
        reference = check.results(self._prepare(check.phases), len(self.ids), self._reset)
        trials: dict[Params, Verdict] = {}
        right: dict[Params, Prepared] = {}
        right[tuning_key.default] = self._prepare(
            _flat(self._runs(step, tuning_key, tuning_key.default))
        )
        for params in tuning_key.candidates:
            trials[params] = Verdict.NO_BETTER
            try:
                outputs, prepared = self._results(step, tuning_key, params, check)
            except DeviceError:
                trials[params] = Verdict.FAILED
                continue
            if check.agrees(reference, outputs):
                right[params] = prepared
            else:
                trials[params] = Verdict.WRONG
        times = self._timing.times(right)
        best = self._winner(tuning_key.default, times, right)
        if best != tuning_key.default:
            trials[best] = Verdict.WON
        self.tuning = self.tuning.with_params(tuning_key.name, best)
        return Outcome(
            tuning_key,
            step.name,
            best,
            float(np.median(times[tuning_key.default])),
            float(np.median(times[best])),
            tuple(
                Trial(params, verdict, float(np.median(times[params])) if params in times else 0.0)
                for params, verdict in trials.items()
            ),
        )

    def _results(
        self, step: PassSpec, tuning_key: AnyTuningKey, params: Params, check: Check
    ) -> tuple[list[Bytes], Prepared]:
        """Run the phases of a candidate; return their results, and the phases ready to be timed.

        Raises:
            DeviceError: The device or the stored parameters do not allow the candidate.
        """
        runs = self._runs(step, tuning_key, params)
        if not _runs_with(runs, tuning_key.name, params):
            raise DeviceError(
                "the candidate cannot be combined with the stored parameters",
                where=tuning_key.name,
            )
        phases = self._prepare(runs[0])
        outputs = check.with_phases(runs[0]).results(phases, len(self.ids), self._reset)
        return outputs, self._prepare(_flat(runs))

    def whole(self, step: PassSpec, outcomes: list[Outcome]) -> tuple[PassTimes, list[Outcome]]:
        """Compare whole passes; discard the winners if together they are slower."""
        keys = {outcome.tuning_key.name for outcome in outcomes}
        defaults = self._prepare(self._pass(step, self.tuning.without(keys)))
        winners = self._prepare(self._pass(step, self.tuning))
        rounds = [self._timing.interleaved([defaults, winners]) for _ in range(2)]
        before, after = (np.concatenate(times) for times in zip(*rounds, strict=True))
        default, tuned = float(np.median(before)), float(np.median(after))
        kept = tuned <= (1 + max(SLOWER, scatter(before))) * default
        if not kept:
            self.tuning = self.tuning.without(keys)
            outcomes = [
                replace(outcome, chosen=outcome.tuning_key.default, seconds=outcome.default_seconds)
                for outcome in outcomes
            ]
        return PassTimes(step.name, default, tuned, kept), outcomes

    def _pass(self, step: PassSpec, tuning: Tuning) -> tuple[Phase, ...]:
        """Return a pass without its argmax, which would change the step for the following runs."""
        lowered = self._lower(step, tuning)
        return (*lowered.body, *lowered.head)

    def _lower(self, step: PassSpec, tuning: Tuning) -> Pass:
        assert self.memory is not None, "a step has begun"
        state, cache = self.memory
        return self.plan.lower(step, tuning, state=state, cache=cache)

    def _runs(self, step: PassSpec, tuning_key: AnyTuningKey, params: Params) -> list[list[Phase]]:
        tuning = self.tuning.with_params(tuning_key.name, params)
        return _of(tuning_key.name, self._lower(step, tuning).phases)

    def _prepare(self, phases: Sequence[Phase]) -> Prepared:
        return DispatchExecutor(self.setting.device).prepare(phases)

    @property
    def _timing(self) -> InterleavedTimer:
        setting = self.setting
        return InterleavedTimer(
            setting.device, self.timer, len(self.ids), self._reset, setting.rounds
        )

    def _reset(self) -> None:
        assert self.memory is not None, "a step has begun"
        step = Step(self.setting.device, self.memory[0])
        if self.spec.is_multi_sequence:
            step.write_rows([Row(token, at, self.base) for at, token in enumerate(self.ids)])
        else:
            step.write(self.ids, self.base)

    def _winner(
        self,
        default: Params,
        times: dict[Params, Times],
        bound: dict[Params, Prepared],
    ) -> Params:
        """Return the fastest candidate if two measurements confirm it, otherwise the default."""
        best = min(times, key=lambda params: float(np.median(times[params])))
        if best == default or not better(times[best], times[default]):
            return default
        again = self._timing.times({params: bound[params] for params in (default, best)})
        return best if better(again[best], again[default]) else default


def _runs_with(runs: Iterable[list[Phase]], key: str, params: Params) -> bool:
    """Return whether phases use a tuning key with these parameters."""
    return any(
        tuning_key.name == key and tuning_key.used == params
        for phase in _flat(runs)
        for tuning_key in phase.tuning_keys
    )


def _flat(runs: Iterable[list[Phase]]) -> list[Phase]:
    return [phase for run in runs for phase in run]
