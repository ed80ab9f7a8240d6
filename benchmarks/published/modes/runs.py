"""The measured runs of one decode mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr.bench.figures import Spread
from rdrr.bench.runs import Run

from published.modes.gpu_time import GpuTime
from published.modes.table import Mode


@dataclass(frozen=True)
class ModeRuns:
    """The runs of a mode.

    Attributes:
        mode: The mode.
        runs: Its runs, one per round.
        gpu: GPU time of a token; None without timestamps.
    """

    mode: Mode
    runs: tuple[Run, ...]
    gpu: GpuTime | None

    def seconds(self) -> list[float]:
        """Return the seconds per token, round by round."""
        return [run.decode_seconds / run.decoded for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        last = self.runs[-1]
        assert last.work is not None, "runs on a GPU have counters"
        return {
            "ms_per_token": Spread.of([1e3 * seconds for seconds in self.seconds()]).as_dict(),
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
