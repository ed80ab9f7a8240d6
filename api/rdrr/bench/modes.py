"""The decode modes of published systems around the same kernels, measured in turns.

Modes differ in submission, allocation and synchronisation only, and in where the likeliest token is
chosen. That the kernels take the same GPU time in each is measured and stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import DeviceError

from rdrr.bench._figures import NOT_GATED, Ratio, Spread
from rdrr.bench._gpu_time import GpuTime, gpu_times
from rdrr.bench._interval_model import interval_gains
from rdrr.bench._mode_table import GATES, Mode
from rdrr.bench._runs import Options, Run, Workload, generate, load, open_device

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.gpu import GpuBackend

GPU_TOLERANCE = 0.05
"""Share by which the GPU time of a token's kernels may differ between modes."""


@dataclass(frozen=True)
class Measured:
    """A mode's runs.

    Attributes:
        mode: What ran.
        runs: In the order of the rounds.
        gpu: GPU time of a token; None without timestamps.
    """

    mode: Mode
    runs: tuple[Run, ...]
    gpu: GpuTime | None

    def seconds(self) -> list[float]:
        """Seconds of a delivered token, round by round."""
        return [run.decode_seconds / run.decoded for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        last = self.runs[-1]
        assert last.work is not None, "a GPU run counts its work"
        return {
            "ms_per_token": Spread.of([1e3 * one for one in self.seconds()]).as_dict(),
            **self._gpu_as_dict(),
            "interval": self.mode.interval,
            "sampler": self.mode.sampler,
            "submission": vars(self.mode.submission),
            "tokens": last.decoded,
            "forwards": last.counts.forwards,
            "wasted_forwards": last.counts.wasted,
            "readbacks": last.counts.readbacks,
            "work": vars(last.work),
        }

    def _gpu_as_dict(self) -> dict[str, float | None]:
        gpu = self.gpu
        return {
            "gpu_ms_per_token": None if gpu is None else gpu.token_ms,
            "gpu_passes_ms_per_token": None if gpu is None else gpu.passes_ms,
            "gpu_smallest_pass_us": None if gpu is None else gpu.smallest_us,
            "gpu_kernels_ms_per_token": None if gpu is None else gpu.kernels_ms,
        }


@dataclass(frozen=True)
class Comparison:
    """All modes of one benchmark.

    Attributes:
        adapter: Where they ran.
        software: Whether that is the CPU in disguise.
        work: What each run did.
        modes: In order.
    """

    adapter: str
    software: bool
    work: Workload
    modes: tuple[Measured, ...]

    def ratios(self) -> list[Ratio]:
        """Of each pair that has a gate, then of each mode over the first."""
        by_name = {one.mode.name: one.seconds() for one in self.modes}
        gated = [
            Ratio.between(
                f"{gate.fast} over {gate.slow}",
                by_name[gate.slow],
                by_name[gate.fast],
                gate=gate.least,
                published=gate.published,
            )
            for gate in GATES
            if gate.fast in by_name and gate.slow in by_name
        ]
        said = {one.name for one in gated}
        first, *others = by_name
        more = (
            Ratio.between(f"{name} over {first}", by_name[first], by_name[name]) for name in others
        )
        return gated + [one for one in more if one.name not in said]

    def gpu_spread(self) -> float | None:
        """By how much the slowest GPU time of a token's kernels exceeds the fastest, as a share."""
        times = [one.gpu.kernels_ms for one in self.modes if one.gpu is not None]
        if not times or min(times) <= 0:
            return None
        return max(times) / min(times) - 1

    def gpu_verdict(self) -> str:
        """Whether the kernels take the same time in each mode."""
        spread = self.gpu_spread()
        if spread is None:
            return "not measured: the adapter has no timestamps, or coarse ones"
        if spread <= GPU_TOLERANCE:
            return "pass"
        return NOT_GATED if self.software else "missed"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema": 1,
            "adapter": self.adapter,
            "software": self.software,
            **self.work.as_dict(),
            "same_ids": True,
            "modes": {one.mode.name: one.as_dict() for one in self.modes},
            "ratios": [one.as_dict(software=self.software) for one in self.ratios()],
            "interval_model": [one.as_dict() for one in interval_gains(self.modes)],
            "gpu_time_spread": self.gpu_spread(),
            "gpu_time_verdict": self.gpu_verdict(),
        }


def compare(
    package: Package,
    modes: Sequence[Mode],
    work: Workload,
    *,
    adapter: str | None = None,
    options: Options | None = None,
) -> Comparison:
    """Measure modes in turns, in one process, on one loaded model.

    Raises:
        UsageError: The model has no room for the workload.
        DeviceError: No adapter, too little memory, or modes that generate different ids.
    """
    with open_device(adapter) as device:
        backend = load(package, device, work, options or Options())
        try:
            prompt = work.ids(package.manifest.architecture.vocab_size)
            runs = _in_turns(backend, device, modes, prompt, work)
            gpu = gpu_times(backend, device, modes, prompt, work)
        finally:
            backend.close()
        found = (
            Measured(mode, tuple(one), time)
            for mode, one, time in zip(modes, runs, gpu, strict=True)
        )
        return Comparison(device.info.name, device.info.software, work, tuple(found))


def _in_turns(
    backend: GpuBackend, device: Device, modes: Sequence[Mode], prompt: list[int], work: Workload
) -> list[list[Run]]:
    runs: list[list[Run]] = [[] for _ in modes]
    for index in range(work.repeat + 1):
        for mode, own in zip(modes, runs, strict=True):
            run = generate(
                backend, mode.strategy(), prompt, work.tokens, device=device, how=mode.submission
            )
            _same_ids(mode, run, runs[0][0] if runs[0] else run)
            own[:] = [*own, run] if index > 1 else [run]  # the first round only warms up
    return runs


def _same_ids(mode: Mode, run: Run, first: Run) -> None:
    if run.ids != first.ids:
        at = next(
            i for i, pair in enumerate(zip(run.ids, first.ids, strict=True)) if len({*pair}) > 1
        )
        raise DeviceError(
            f"mode {mode.name} generates other ids",
            where=f"token {at}",
            expected=first.ids[at],
            found=run.ids[at],
        )
