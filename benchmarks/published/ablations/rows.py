"""The results of ablations, with their form in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rdrr.bench.figures import Spread
from rdrr.bench.runs import GpuTimes, Run, Workload

from published.ablations.table import Ablation
from published.ratios import Ratio


@dataclass(frozen=True)
class Row:
    """The result of one ablation.

    Attributes:
        ablation: The ablation.
        slow: Runs without the optimization.
        fast: Runs with the optimization.
        memory: Bytes of the weights and of the key-value cache, for the slow and the fast side.
        gpu: GPU time of each side, measured in an ordinary generation rather than in its mode.
        obstacle: Why the ablation did not run, or an empty string.
        warnings: Hints that were not honoured on a side.
    """

    ablation: Ablation
    slow: tuple[Run, ...] = ()
    fast: tuple[Run, ...] = ()
    memory: tuple[tuple[int, int], ...] = ()
    gpu: tuple[GpuTimes, ...] = (GpuTimes(), GpuTimes())
    obstacle: str = ""
    warnings: tuple[str, ...] = ()

    def ratio(self) -> Ratio:
        """Divide the seconds without the optimization by those with it, round by round."""
        ablation = self.ablation
        times = [[seconds(run, ablation) for run in runs] for runs in (self.slow, self.fast)]
        return Ratio.between(
            f"{ablation.name}: {ablation.fast.name} over {ablation.slow.name}",
            *times,
            gate=ablation.gate,
            published=ablation.published,
        )

    def as_dict(self, *, software: bool) -> dict[str, Any]:
        """Return the figures for JSON."""
        ablation = self.ablation
        head = {
            "name": ablation.name,
            "phase": ablation.phase,
            "slow": ablation.slow.name,
            "fast": ablation.fast.name,
        }
        if self.obstacle:
            return head | {"not_run": self.obstacle}
        return head | {
            "ratio": self.ratio().as_dict(software=software),
            "same_ids": _common_prefix(self.slow[-1], self.fast[-1]),
            "warnings": list(self.warnings),
            "sides": [
                _side(runs, ablation, memory, gpu)
                for runs, memory, gpu in zip(
                    (self.slow, self.fast), self.memory, self.gpu, strict=True
                )
            ],
        }


def seconds(run: Run, ablation: Ablation) -> float:
    """Return the seconds that an ablation compares: per token, or to the first token."""
    return run.decode_seconds / run.decoded if ablation.phase == "decode" else run.first_seconds


def _side(
    runs: Sequence[Run], ablation: Ablation, memory: tuple[int, int], gpu: GpuTimes
) -> dict[str, Any]:
    last = runs[-1]
    return {
        "ms": Spread.of([1e3 * seconds(run, ablation) for run in runs]).as_dict(),
        "gpu_prefill_ms": gpu.prefill,
        "gpu_decode_ms_per_token": gpu.decode,
        "forwards": last.counts.forwards,
        "readbacks": last.counts.readbacks,
        "work_per_token": None
        if last.work is None
        else {name: count / last.decoded for name, count in vars(last.work).items()},
        "weights_bytes": memory[0],
        "kv_bytes": memory[1],
    }


def _common_prefix(a: Run, b: Run) -> float:
    """Return the fraction of the token ids before the first difference."""
    pairs = list(zip(a.ids, b.ids, strict=False))
    same = next((index for index, (x, y) in enumerate(pairs) if x != y), len(pairs))
    return same / len(pairs)


@dataclass(frozen=True)
class Table:
    """The results of all ablations of one benchmark.

    Attributes:
        adapter: Name of the adapter.
        software: Whether the adapter is a software renderer on the CPU.
        work: Size of each run.
        rows: One row for each ablation, in the order of the request.
    """

    adapter: str
    software: bool
    work: Workload
    rows: tuple[Row, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "schema": 1,
            "adapter": self.adapter,
            "software": self.software,
            **self.work.as_dict(),
            "ablations": [row.as_dict(software=self.software) for row in self.rows],
        }
