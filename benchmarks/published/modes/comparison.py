"""Measure the decode modes of published systems alternately, with the same kernels.

Modes differ only in submission, allocation and synchronisation, and in where the argmax is taken.
The GPU time of the kernels is measured in each mode as well, to show that it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr.bench.runs import LoadedAs, Run, Workload, generate, load, open_device
from rdrr_format.errors import DeviceError

from published.modes.gpu_time import gpu_times
from published.modes.interval_model import interval_gains
from published.modes.runs import ModeRuns
from published.modes.submission import Submitters
from published.modes.table import GATES, Mode
from published.ratios import NOT_GATED, Ratio

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.gpu import GpuBackend

GPU_TOLERANCE = 0.05
"""Largest relative difference of the kernels' GPU time between modes that passes."""


@dataclass(frozen=True)
class Comparison:
    """The runs of all modes of one benchmark.

    Attributes:
        adapter: Name of the adapter.
        software: Whether the adapter is a software renderer on the CPU.
        work: Size of each run.
        modes: The runs of each mode, in the order of the request.
    """

    adapter: str
    software: bool
    work: Workload
    modes: tuple[ModeRuns, ...]

    def ratios(self) -> list[Ratio]:
        """Return the ratios of the pairs with gates, then those of each mode over the first."""
        by_name = {runs.mode.name: runs.seconds() for runs in self.modes}
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
        names = {ratio.name for ratio in gated}
        first, *others = by_name
        more = (
            Ratio.between(f"{name} over {first}", by_name[first], by_name[name]) for name in others
        )
        return gated + [ratio for ratio in more if ratio.name not in names]

    def gpu_spread(self) -> float | None:
        """Return by how much the GPU time of a token's kernels varies: longest / shortest - 1.

        It is None without timestamps, or with timestamps that are too coarse.
        """
        times = [runs.gpu.kernels_ms for runs in self.modes if runs.gpu is not None]
        if not times or min(times) <= 0:
            return None
        return max(times) / min(times) - 1

    def gpu_verdict(self) -> str:
        """Return the verdict on whether the kernels take the same time in all modes."""
        spread = self.gpu_spread()
        if spread is None:
            return "not measured: the adapter has no timestamps, or they are too coarse"
        if spread <= GPU_TOLERANCE:
            return "pass"
        return NOT_GATED if self.software else "missed"

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "schema": 1,
            "adapter": self.adapter,
            "software": self.software,
            **self.work.as_dict(),
            "same_ids": True,
            "modes": {runs.mode.name: runs.as_dict() for runs in self.modes},
            "ratios": [ratio.as_dict(software=self.software) for ratio in self.ratios()],
            "interval_model": [gain.as_dict() for gain in interval_gains(self.modes)],
            "gpu_time_spread": self.gpu_spread(),
            "gpu_time_verdict": self.gpu_verdict(),
        }


def compare(
    package: Package,
    modes: Sequence[Mode],
    work: Workload,
    *,
    adapter: str | None = None,
    options: LoadedAs | None = None,
) -> Comparison:
    """Measure modes alternately, in one process, on one loaded model.

    Args:
        package: Package of the model.
        modes: The modes to measure.
        work: Size of each run.
        adapter: Part of the name of the adapter to use.
        options: How the package is loaded.

    Raises:
        UsageError: The workload exceeds the model's context length.
        DeviceError: There is no adapter, too little memory, or modes generate different ids.
    """
    with open_device(adapter) as device, closing(Submitters(device)) as submitters:
        with closing(load(package, device, work, options or LoadedAs())) as backend:
            prompt = work.ids(package.manifest.architecture.vocab_size)
            runs = _alternate(backend, submitters, modes, prompt, work)
            gpu = gpu_times(backend, submitters, modes, prompt, work)
        measured = (
            ModeRuns(mode, tuple(mode_runs), time)
            for mode, mode_runs, time in zip(modes, runs, gpu, strict=True)
        )
        return Comparison(device.info.name, device.info.software, work, tuple(measured))


def _alternate(
    backend: GpuBackend,
    submitters: Submitters,
    modes: Sequence[Mode],
    prompt: list[int],
    work: Workload,
) -> list[list[Run]]:
    """Return the runs of each mode; a round runs every mode once, so that all share a clock."""
    runs: list[list[Run]] = [[] for _ in modes]
    for index in range(work.repeat + 1):
        for mode, runs_of_mode in zip(modes, runs, strict=True):
            run = generate(
                backend,
                mode.strategy(),
                prompt,
                work.tokens,
                device=submitters.device,
                decoding=submitters.submitting(mode.submission),
            )
            _check_ids(mode, run, runs[0][0] if runs[0] else run)
            # Round 0 warms up: the list holds it until round 1 replaces it.
            runs_of_mode[:] = [*runs_of_mode, run] if index > 1 else [run]
    return runs


def _check_ids(mode: Mode, run: Run, first: Run) -> None:
    if run.ids != first.ids:
        at = next(
            i for i, pair in enumerate(zip(run.ids, first.ids, strict=True)) if len({*pair}) > 1
        )
        raise DeviceError(
            f"mode {mode.name} generates other token ids than the first mode",
            where=f"token {at}",
            expected=first.ids[at],
            found=run.ids[at],
        )
