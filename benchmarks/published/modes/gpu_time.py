"""Measure the GPU time of a token in each mode: as the mode submits it, and of its kernels alone.

For the kernels, each dispatch is timed in its own pass and command buffer. Such a pass takes some
microseconds in addition to its kernel, and more of them after an idle GPU than after another pass.
So the smallest dispatch is timed in the same mode and its time subtracted from each pass. The rest
is the time of the kernels, which must be equal in all modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from _script import keep_busy

from published.kernels.kernel_bench import KernelBench

if TYPE_CHECKING:
    from rdrr.bench.runs import Workload
    from rdrr_device.device import Device
    from rdrr_device.pass_timer import PassTimer
    from rdrr_device.pipelines import BoundDispatch
    from rdrr_runtime.gpu import GpuBackend

    from published.modes.submission import Submission, Submitters
    from published.modes.table import Mode

TOKENS = 16  # maximum number of tokens per measurement
ROUNDS = 3  # maximum number of rounds
BUSY_SECONDS = 0.3  # seconds of work before a measurement, to raise the clocks
SMALLEST = 64
"""Elements that the smallest dispatch scales: one workgroup."""


@dataclass(frozen=True)
class GpuTime:
    """GPU time of a token in one mode; each figure is the smallest of several rounds.

    Attributes:
        token_ms: Milliseconds as the mode submits the token.
        passes_ms: Milliseconds with each dispatch in its own pass and command buffer.
        smallest_us: Microseconds of the smallest dispatch in such a pass.
        dispatches: Number of dispatches per token.
    """

    token_ms: float
    passes_ms: float
    smallest_us: float
    dispatches: int

    @property
    def kernels_ms(self) -> float:
        """Return the milliseconds of the passes minus those of as many smallest dispatches."""
        return self.passes_ms - 1e-3 * self.dispatches * self.smallest_us


def gpu_times(
    backend: GpuBackend,
    submitters: Submitters,
    modes: Sequence[Mode],
    prompt: list[int],
    work: Workload,
) -> list[GpuTime | None]:
    """Measure the GPU times of the modes alternately; they are None without timestamps.

    Raises:
        DeviceError: The device reports no time.
    """
    from rdrr_device.timestamps import FEATURE

    device = submitters.device
    if FEATURE not in device.features:
        return [None] * len(modes)
    tokens = min(work.tokens - 1, TOKENS)
    ids = backend.greedy(prompt, 0, 1)

    def decode() -> None:
        backend.greedy(ids, len(prompt), tokens)

    before = device.counters.dispatches
    decode()
    dispatches = (device.counters.dispatches - before) // tokens
    times: list[list[GpuTime]] = [[] for _ in modes]
    with _smallest(device, dispatches) as smallest:
        meter = _Meter(submitters, decode, smallest, tokens, dispatches)
        for _ in range(min(ROUNDS, work.repeat)):
            for mode, done in zip(modes, times, strict=True):
                done.append(meter.measure(mode.submission))
    return [_least(measured) for measured in times]


def _least(times: Sequence[GpuTime]) -> GpuTime:
    return GpuTime(
        min(time.token_ms for time in times),
        min(time.passes_ms for time in times),
        min(time.smallest_us for time in times),
        times[0].dispatches,
    )


@contextmanager
def _smallest(device: Device, count: int) -> Iterator[tuple[BoundDispatch, ...]]:
    """Yield the smallest dispatch, bound, `count` times: once per dispatch of a token."""
    from rdrr_device.arena import arena
    from rdrr_device.timestamps import Timer
    from rdrr_runtime.phases.launch import as_dispatch
    from rdrr_runtime.phases.rows.elementwise import scale

    with arena(device, "bench") as buffers:
        bench = KernelBench(device, buffers, Timer(device))
        x = bench.floats(SMALLEST)
        (phase,) = scale(bench.context(1), x, width=SMALLEST, factor=1.0, label="smallest")
        yield (device.bind(as_dispatch(phase)),) * count


@dataclass(frozen=True)
class _Meter:
    """Measures the GPU time of a token in one mode after the other, on a warm device."""

    submitters: Submitters
    decode: Callable[[], None]
    smallest: tuple[BoundDispatch, ...]
    tokens: int
    dispatches: int

    def measure(self, how: Submission) -> GpuTime:
        """Measure the GPU time of a token submitted in the way of `how`."""
        from rdrr_device.pass_timer import timed

        # Modes keep the GPU idle to different degrees, and an idle GPU lowers its clocks.
        device = self.submitters.device
        keep_busy(self.decode, 0.0 if device.info.software else BUSY_SECONDS)
        with timed(device) as timer:
            apart = replace(how, pass_per_op=True)
            passes = self._of(apart, self.decode, timer)
            smallest = self._of(apart, self._launch_smallest, timer)
            token = passes if how.submit_per_op else self._of(how, self.decode, timer)
        return GpuTime(1e3 * token, 1e3 * passes, 1e6 * smallest / self.dispatches, self.dispatches)

    def _of(self, how: Submission, run: Callable[[], None], timer: PassTimer) -> float:
        """Run with a submission and return the seconds per token of its passes."""
        timer.collect()
        with self.submitters.submitting(how):
            run()
        return timer.collect() / self.tokens

    def _launch_smallest(self) -> None:
        for _ in range(self.tokens):
            self.submitters.device.submit(self.smallest, 1)
