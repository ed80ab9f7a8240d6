"""What came of ablations, for tables and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rdrr.bench._ablation_table import Ablation
from rdrr.bench._figures import Ratio, Spread
from rdrr.bench._runs import GpuTimes, Run, Workload


@dataclass(frozen=True)
class Row:
    """What came of one ablation.

    Attributes:
        ablation: Which.
        slow: Runs without the change.
        fast: Runs with it.
        memory: Bytes of weights and of the key-value cache, slow and fast.
        gpu: GPU time of a usual generation of each, whatever the side's mode.
        obstacle: Why it did not run, or empty.
        warnings: Hints that a side did not follow.
    """

    ablation: Ablation
    slow: tuple[Run, ...] = ()
    fast: tuple[Run, ...] = ()
    memory: tuple[tuple[int, int], ...] = ()
    gpu: tuple[GpuTimes, ...] = (GpuTimes(), GpuTimes())
    obstacle: str = ""
    warnings: tuple[str, ...] = ()

    def ratio(self) -> Ratio:
        """Seconds without the change over those with it, round by round."""
        one = self.ablation
        times = [[seconds(run, one) for run in runs] for runs in (self.slow, self.fast)]
        return Ratio.between(
            f"{one.name}: {one.fast.name} over {one.slow.name}",
            *times,
            gate=one.gate,
            published=one.published,
        )

    def as_dict(self, *, software: bool) -> dict[str, Any]:
        """For JSON."""
        one = self.ablation
        head = {"name": one.name, "phase": one.phase, "slow": one.slow.name, "fast": one.fast.name}
        if self.obstacle:
            return head | {"not_run": self.obstacle}
        return head | {
            "ratio": self.ratio().as_dict(software=software),
            "same_ids": _agreeing(self.slow[-1], self.fast[-1]),
            "warnings": list(self.warnings),
            "sides": [
                _side(runs, one, memory, gpu)
                for runs, memory, gpu in zip(
                    (self.slow, self.fast), self.memory, self.gpu, strict=True
                )
            ],
        }


def seconds(run: Run, ablation: Ablation) -> float:
    """What an ablation looks at: seconds of a token, or to the first one."""
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


def _agreeing(a: Run, b: Run) -> float:
    """Share of the ids that agree before the first that does not."""
    pairs = list(zip(a.ids, b.ids, strict=False))
    same = next((index for index, (x, y) in enumerate(pairs) if x != y), len(pairs))
    return same / len(pairs)


@dataclass(frozen=True)
class Table:
    """All ablations of one benchmark.

    Attributes:
        adapter: Where they ran.
        software: Whether that is the CPU in disguise.
        work: What each run did.
        rows: In order.
    """

    adapter: str
    software: bool
    work: Workload
    rows: tuple[Row, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema": 1,
            "adapter": self.adapter,
            "software": self.software,
            **self.work.as_dict(),
            "ablations": [row.as_dict(software=self.software) for row in self.rows],
        }
