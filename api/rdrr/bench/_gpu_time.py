"""What the GPU takes for a token in each mode: as it is submitted, and for its kernels alone.

Kernels are timed one by one, each in a pass and commands of its own. Such a pass takes some
microseconds around its kernel, and not the same when the GPU has idled before it as when it follows
another. So the smallest launch is timed in the same mode, and taken off each pass: what is left is
the kernels' own, and is to be equal in all modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from rdrr.bench._lab import Lab

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_device.pass_timer import PassTimer
    from rdrr_device.pipelines import BoundDispatch
    from rdrr_device.submission import Submission
    from rdrr_runtime.gpu import GpuBackend

    from rdrr.bench._mode_table import Mode
    from rdrr.bench._runs import Workload

TOKENS = 16
ROUNDS = 3
BUSY_SECONDS = 0.3
SMALLEST = 64
"""Numbers that the smallest launch scales: a workgroup."""


@dataclass(frozen=True)
class GpuTime:
    """GPU time of a token in one mode; of each figure the least of some rounds.

    Attributes:
        token_ms: As the mode submits it.
        passes_ms: With each dispatch in a pass and commands of its own.
        smallest_us: What the smallest launch takes in such a pass.
        dispatches: Of a token.
    """

    token_ms: float
    passes_ms: float
    smallest_us: float
    dispatches: int

    @property
    def kernels_ms(self) -> float:
        """What the kernels take beyond as many of the smallest launches."""
        return self.passes_ms - 1e-3 * self.dispatches * self.smallest_us


def gpu_times(
    backend: GpuBackend, device: Device, modes: Sequence[Mode], prompt: list[int], work: Workload
) -> list[GpuTime | None]:
    """GPU times of the modes, measured in turns; None without timestamps.

    Raises:
        DeviceError: The device reports no time.
    """
    from rdrr_device.timestamps import FEATURE

    if FEATURE not in device.features:
        return [None] * len(modes)
    tokens = min(work.tokens - 1, TOKENS)
    ids = backend.greedy(prompt, 0, 1)

    def decode() -> None:
        backend.greedy(ids, len(prompt), tokens)

    before = device.counters.dispatches
    decode()
    dispatches = (device.counters.dispatches - before) // tokens
    found: list[list[GpuTime]] = [[] for _ in modes]
    with _smallest(device, dispatches) as smallest:
        meter = _Meter(device, decode, smallest, tokens, dispatches)
        for _ in range(min(ROUNDS, work.repeat)):
            for mode, own in zip(modes, found, strict=True):
                own.append(meter.measure(mode.submission))
    return [_least(one) for one in found]


def _least(times: Sequence[GpuTime]) -> GpuTime:
    return GpuTime(
        min(one.token_ms for one in times),
        min(one.passes_ms for one in times),
        min(one.smallest_us for one in times),
        times[0].dispatches,
    )


@contextmanager
def _smallest(device: Device, count: int) -> Iterator[tuple[BoundDispatch, ...]]:
    """As many of the smallest launches as a token has dispatches, one after the other."""
    from rdrr_device.arena import arena
    from rdrr_device.timestamps import Timer
    from rdrr_runtime.phases.elementwise import scale

    with arena(device, "bench") as buffers:
        lab = Lab(device, buffers, Timer(device))
        x = lab.floats(SMALLEST)
        (one,) = scale(lab.context(1), x, width=SMALLEST, factor=1.0, label="smallest")
        yield (device.bind(one),) * count


@dataclass(frozen=True)
class _Meter:
    """Measures one mode after the other on a warm device."""

    device: Device
    decode: Callable[[], None]
    smallest: tuple[BoundDispatch, ...]
    tokens: int
    dispatches: int

    def measure(self, how: Submission) -> GpuTime:
        """The GPU time of a token that is submitted so."""
        from rdrr_device.pass_timer import timed

        self._keep_busy()
        with timed(self.device) as timer:
            apart = replace(how, pass_per_op=True)
            passes = self._of(apart, self.decode, timer)
            smallest = self._of(apart, self._launch_smallest, timer)
            token = passes if how.submit_per_op else self._of(how, self.decode, timer)
        return GpuTime(1e3 * token, 1e3 * passes, 1e6 * smallest / self.dispatches, self.dispatches)

    def _of(self, how: Submission, run: Callable[[], None], timer: PassTimer) -> float:
        """Seconds of a token's passes."""
        timer.take()
        with self.device.submitting(how):
            run()
        return timer.take() / self.tokens

    def _launch_smallest(self) -> None:
        for _ in range(self.tokens):
            self.device.submit(self.smallest, 1)

    def _keep_busy(self) -> None:
        """Decode for a while: modes leave a device idle to different degrees, and clocks follow."""
        end = perf_counter() + (0.0 if self.device.info.software else BUSY_SECONDS)
        while perf_counter() < end:
            self.decode()
