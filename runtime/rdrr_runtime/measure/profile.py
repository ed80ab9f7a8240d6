"""The profiler: GPU time by kernel, and the host's time for recording and waiting.

Each step runs twice. Run as one compute pass, as in generation, it gives the time of a step and the
host's time around it. Run with a compute pass for each dispatch, it gives the share of each kernel.
This module does not present the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from rdrr_device.arena import DeviceArena, arena
from rdrr_device.device import Device
from rdrr_device.timestamps import Timed, Timer, warm_up
from rdrr_device.tuning import Tuning
from rdrr_format.errors import DeviceError, UsageError
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.executor import DispatchExecutor, Prepared
from rdrr_runtime.exec.persistent.choice import Persistence, persistent_executor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.prepared import PreparedPasses
from rdrr_runtime.exec.traffic import traffic
from rdrr_runtime.measure.one_dispatch import OneDispatch, time_parts
from rdrr_runtime.measure.profiled import KernelTime, Profile, Span, StepProfile
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.rows.copy import copy
from rdrr_runtime.sequences.step import Step

PREFILL_RUNS = 4
"""Number of times that the prefill of the prompt is measured."""

COPY_BYTES = 256 << 20
SOFTWARE_COPY_BYTES = 32 << 20
COPY_RUNS = 9


def profile(
    package: Package,
    device: Device,
    policy: Policy,
    *,
    context: int,
    kv_dtype: str = "f16",
    prompt_tokens: int,
    tokens: int,
    tuning: Tuning | None = None,
    persistence: Persistence | None = None,
) -> Profile:
    """Load a package, run it and measure it.

    Args:
        package: The package, with its weights.
        device: The device to run on.
        policy: Hints.
        context: Slots of the key-value cache.
        kv_dtype: Type of the cache's elements.
        prompt_tokens: Tokens of the prompt.
        tokens: Tokens decoded after the prompt.
        tuning: Tuned parameters of kernels; the defaults when None.
        persistence: How to run the decode pass in one dispatch, whose parts are then measured too.

    Raises:
        UsageError: The tokens exceed the context, or there are none; or the decode pass does not
            run in one dispatch.
        DeviceError: The device has no timestamps, or too little memory.
    """
    if min(prompt_tokens, tokens) < 1 or prompt_tokens + tokens > context:
        raise UsageError(
            "the tokens do not fit the context",
            expected=f"at least 1 each, and at most {context} together",
            found=f"{prompt_tokens} + {tokens}",
        )
    timer = Timer(device)
    bandwidth, size = copy_bandwidth(device, timer)
    with arena(device, "profile") as buffers:
        plan = Plan(package, buffers, policy, context=context, kv_dtype=kv_dtype, tuning=tuning)
        prepared = PreparedPasses(plan, DispatchExecutor(device))
        run = _Profiler(device, timer, plan, prepared, buffers)
        prefill = run.prefill(prompt_tokens)
        decode = run.decode(prompt_tokens, tokens)
        parts = None if persistence is None else run.one_dispatch(prompt_tokens, persistence)
    spans = tuple(run.spans)
    return Profile(device.info, bandwidth, size, prefill, decode, spans, run.offset, parts)


def copy_bandwidth(device: Device, timer: Timer) -> tuple[float, int]:
    """Return the bytes per second of a large copy, reads and writes together, and its size."""
    amount = SOFTWARE_COPY_BYTES if device.info.software else COPY_BYTES
    size = min(amount, device.max_binding)
    with arena(device, "copy") as buffers:
        x, y = buffers.empty("x", size), buffers.empty("y", size)
        bound = DispatchExecutor(device).prepare(copy(x, y, label="copy"))
        warm_up(device, timer, [bound], 1)
        times = timer.run([bound] * COPY_RUNS, 1).seconds
    return 2 * size / float(np.median(times)), 2 * size


@dataclass(frozen=True)
class _Submission:
    """One submission, which is a step or a part of it.

    Attributes:
        phases: The phases.
        prepared: The phases, ready to run.
        body: The phases up to the last layer, ready to run.
        ids: Token ids of the rows.
        base: Slot of the first row.
    """

    phases: tuple[Phase, ...]
    prepared: Prepared
    body: Prepared
    ids: tuple[int, ...]
    base: int


@dataclass
class _Totals:
    """Sums over all measured steps of one kind.

    Attributes:
        gpu: Seconds of GPU time, run as in generation.
        encode: Seconds in which the host recorded and submitted.
        sync: Seconds in which the host waited.
        seconds: GPU time by kernel, in a compute pass of its own.
        bytes: Bytes that each kernel had to move.
        calls: Number of dispatches of each kernel.
    """

    gpu: float = 0.0
    encode: float = 0.0
    sync: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


@dataclass
class _Profiler:
    """A loaded model whose steps are run and measured."""

    device: Device
    timer: Timer
    plan: Plan
    prepared: PreparedPasses
    arena: DeviceArena
    spans: list[Span] = field(default_factory=list)
    offset: float = float("inf")

    def prefill(self, count: int) -> StepProfile:
        """Measure the prefill of the prompt, several times."""
        submissions = list(self._prompt(count))
        self._warm(submissions)
        totals = _Totals()
        for _ in range(PREFILL_RUNS):
            for submission in submissions:
                self._measure(submission, totals, "prefill")
        return self._result("prefill", PREFILL_RUNS, count, totals)

    def decode(self, base: int, count: int) -> StepProfile:
        """Measure the decoding of tokens after the prompt."""
        kind = self.prepared.get(DECODE)
        submissions = [
            _Submission(kind.lowered.phases, kind.to_token, kind.body, (self._id(at),), at)
            for at in range(base, base + count)
        ]
        self._warm(submissions[:1])
        totals = _Totals()
        for submission in submissions:
            self._measure(submission, totals, "decode")
        return self._result("decode", count, 1, totals)

    def one_dispatch(self, base: int, persistence: Persistence) -> OneDispatch:
        """Measure the parts of a decode pass in one dispatch, after the prompt.

        Raises:
            UsageError: The decode pass does not run in one dispatch.
        """
        executor, decision = persistent_executor(self.plan, self.arena, persistence)
        if executor is None:
            raise UsageError(decision.reason, hint="use `executor` dispatches")
        step, whole = Step(self.device, self.plan.state), executor.on_grid(self.plan.decode)
        return time_parts(executor, whole, lambda: step.write((self._id(base),), base))

    def _prompt(self, count: int) -> Iterator[_Submission]:
        base = 0
        for kind in self.prepared.consecutive(count):
            ids = tuple(self._id(at) for at in range(base, min(base + kind.rows, count)))
            is_last = base + len(ids) == count
            phases = kind.lowered.phases if is_last else kind.lowered.body
            prepared = kind.to_token if is_last else kind.body
            yield _Submission(phases, prepared, kind.body, ids, base)
            base += len(ids)

    def _id(self, at: int) -> int:
        """Return an arbitrary token id: the time of a dense model does not depend on it."""
        return (at * 7919 + 1) % self.plan.graph.vocab_size

    def _warm(self, submissions: Sequence[_Submission]) -> None:
        for submission in submissions:
            self._write(submission)
            self.timer.run([submission.prepared], len(submission.ids))
        last = submissions[-1]
        self._write(last)
        # Without the argmax, since it would advance the step to one row for the following runs.
        warm_up(self.device, self.timer, [last.body], len(last.ids))

    def _write(self, submission: _Submission) -> None:
        Step(self.device, self.plan.state).write(submission.ids, submission.base)

    def _measure(self, submission: _Submission, totals: _Totals, step: str) -> None:
        rows = len(submission.ids)
        self._write(submission)
        whole = self.timer.run([submission.prepared], rows)
        totals.gpu += float(whole.seconds.sum())
        totals.encode += whole.submitted - whole.encoding
        totals.sync += whole.seen - whole.submitted
        self._keep(whole, [(step, "one pass")])
        pairs = zip(submission.phases, submission.prepared, strict=True)
        serving = [(phase, bound) for phase, bound in pairs if phase.work.serves(rows)]
        self._write(submission)
        single = self.timer.run([(bound,) for _, bound in serving], rows)
        self._keep(single, [(phase.label, phase.name) for phase, _ in serving])
        for (each, _), seconds in zip(serving, single.seconds, strict=True):
            name = each.name
            totals.seconds[name] = totals.seconds.get(name, 0.0) + float(seconds)
            totals.bytes[name] = totals.bytes.get(name, 0) + traffic(each, rows, submission.base)
            totals.calls[name] = totals.calls.get(name, 0) + 1

    def _keep(self, timed: Timed, names: Sequence[tuple[str, str]]) -> None:
        for (name, group), (begin, end) in zip(names, timed.gpu, strict=True):
            self.spans.append(Span(True, name, group, float(begin), float(end)))
        what = names[0][0] if len(names) == 1 else "single dispatches"
        self.spans.append(Span(False, f"encode {what}", "encode", timed.encoding, timed.submitted))
        self.spans.append(Span(False, f"wait for {what}", "sync", timed.submitted, timed.seen))
        # Work ends before the host sees its end. Each measurement thus bounds the offset between
        # the clocks from above, and the smallest bound is used.
        self.offset = min(self.offset, timed.seen - float(timed.gpu[-1, 1]))

    def _result(self, name: str, steps: int, rows: int, totals: _Totals) -> StepProfile:
        silent = [kernel for kernel, seconds in totals.seconds.items() if seconds <= 0]
        if silent:
            raise DeviceError(
                f"the timestamps of the adapter are too coarse: {', '.join(silent)} took no time",
                where=self.device.info.name,
                hint="measure more tokens",
            )
        kernels = [
            KernelTime(kernel, calls // steps, calls, totals.seconds[kernel], totals.bytes[kernel])
            for kernel, calls in totals.calls.items()
        ]
        kernels.sort(key=lambda kernel: -kernel.seconds)
        return StepProfile(
            name,
            steps,
            rows,
            totals.gpu / steps,
            totals.encode / steps,
            totals.sync / steps,
            tuple(kernels),
        )
