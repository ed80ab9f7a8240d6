"""The GPU memory that a model needs, found in a dry run: nothing is loaded or allocated.

The figures are those of prefill and decoding. Score passes, windows, batches and sampling allocate
further memory when they are first used, which is not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_device.dry_run import DryRunArena
from rdrr_device.tuning import Tuning

from rdrr_runtime.compile.pass_spec import PREFILL
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.weights.packing import staging_bytes

if TYPE_CHECKING:
    from rdrr_device.capabilities import Capabilities
    from rdrr_manifests.package import Package

    from rdrr_runtime.compile.choice.hints import Policy


@dataclass(frozen=True)
class Footprint:
    """The GPU memory of a model, in bytes.

    Attributes:
        weights: Weights in the form in which they are kept, which may be larger than stored: a hint
            may expand them, and matrices that no kernel reads as stored are expanded. With those
            that are kept rounded for prompts.
        rounded: Of these, the weights that are kept rounded.
        kv: Key-value cache.
        rest: Activations, logits, tables and the state of a step.
        rows: Largest number of token rows of a pass; not bytes.
        staging: Temporary memory for the upload of the weights.
    """

    weights: int
    rounded: int
    kv: int
    rest: int
    rows: int
    staging: int

    @property
    def total(self) -> int:
        """Bytes that stay allocated."""
        return self.weights + self.kv + self.rest

    @property
    def peak(self) -> int:
        """An upper bound of the bytes allocated at any time; staging is freed after the upload."""
        return self.total + self.staging


def footprint(
    package: Package,
    capabilities: Capabilities,
    policy: Policy,
    *,
    context: int,
    kv_dtype: str = "f16",
    tuning: Tuning | None = None,
) -> Footprint:
    """Return the memory that loading a package and running it would allocate.

    Args:
        package: The package; only its graph and tensor table are read, no weights.
        capabilities: What the device can do.
        policy: Hints.
        context: Slots of the key-value cache.
        kv_dtype: Type of the cache's elements, see `Plan`.
        tuning: Tuned parameters of kernels, see `Plan`.

    Raises:
        FormatError: No kernel can read a tensor.
        UsageError: The model does not support the type of the cache.
    """
    dry_run = DryRunArena(capabilities)
    plan = Plan(package, dry_run, policy, context=context, kv_dtype=kv_dtype, tuning=tuning)
    plan.passes()
    weights, kv = plan.weights.size, plan.cache.size
    on_host = plan.host_tables.buffers
    uploaded = [use.name for use in plan.graph.weights() if use.name not in on_host]
    stored = [package.tensor(name).size for name in uploaded]
    return Footprint(
        weights,
        0 if plan.weights.rows is None else plan.weights.rows.size,
        kv,
        dry_run.size - weights - kv,
        plan.rows(PREFILL),
        staging_bytes(sum(stored)),
    )
