"""Memory that a model takes on a device, laid out on paper: nothing is loaded or allocated.

The figures are those of decoding and of prefill. What further kinds of pass need (scores, windows,
batches, draws) is allocated when it is first asked for, and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_device.dry_run import DryRunArena
from rdrr_device.tuning import Tuning

from rdrr_runtime.compile.pass_spec import LOADED, PREFILL
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.packing import staging_bytes

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package

    from rdrr_runtime.compile.hints import Policy


@dataclass(frozen=True)
class Footprint:
    """Bytes of GPU memory.

    Attributes:
        weights: In the form in which they are kept: hints, and matrices that no kernel reads as
            they are stored, expand them.
        kv: Keys and values.
        rest: Activations, logits, tables and the state of a step.
        rows: Most token rows of a pass.
        staging: What passes through the device's memory while weights are uploaded.
    """

    weights: int
    kv: int
    rest: int
    rows: int
    staging: int

    @property
    def total(self) -> int:
        """Everything that stays allocated."""
        return self.weights + self.kv + self.rest

    @property
    def peak(self) -> int:
        """Most bytes that are allocated at any time, rounded up: staging is freed early."""
        return self.total + self.staging


def footprint(
    package: Package,
    device: Device,
    policy: Policy,
    *,
    context: int,
    kv_dtype: str = "f16",
    tuning: Tuning | None = None,
) -> Footprint:
    """Count what loading a package and running it would allocate.

    Args:
        package: Whose graph and tensor table count; no weights are read.
        device: Whose features and limits count.
        policy: Hints.
        context: KV slots.
        kv_dtype: As of `Plan`.
        tuning: As of `Plan`.

    Raises:
        FormatError: A tensor that no kernel reads.
        UsageError: A type of the cache that does not suit the model.
    """
    paper = DryRunArena(device)
    plan = Plan(package, device, paper, policy, context=context, kv_dtype=kv_dtype, tuning=tuning)
    for spec in LOADED:
        plan.lowered(spec)
    weights, kv = plan.weights.size, plan.cache.size
    stored = [package.tensor(use.name).size for use in plan.graph.weights()]
    return Footprint(
        weights,
        kv,
        paper.size - weights - kv,
        plan.rows(PREFILL),
        staging_bytes(max(stored), sum(stored)),
    )
