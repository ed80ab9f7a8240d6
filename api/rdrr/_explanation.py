"""What would run a package on an adapter and why, without loading it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr._tuned import Stored, read_profile

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.decision import Decision
    from rdrr_runtime.compile.hints import Policy
    from rdrr_runtime.compile.lower import Pass

# How tensors, values and fused ops name the layer they belong to.
_LAYER = re.compile(r"\b(layers\.|layer |l)(\d+)\b")


@dataclass(frozen=True)
class Explanation:
    """The choices of one package on one adapter.

    Attributes:
        adapter: Where it would run.
        policy: The hints in force.
        choices: What serves each op, in order: loading, decode, prefill.
        passes: What runs, phase by phase.
        unhonoured: A line for each hint that some op does not follow.
        tuned: The tuned profile of the adapter, and what became of it.
    """

    adapter: AdapterInfo
    policy: Policy
    choices: tuple[Decision, ...]
    passes: tuple[Pass, ...]
    unhonoured: tuple[str, ...]
    tuned: Stored

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "adapter": self.adapter.name,
            "software": self.adapter.software,
            "tuned_profile": {
                "path": str(self.tuned.path),
                "shapes": len(self.tuned.entries),
                "note": self.tuned.note,
            },
            "hints": {
                one.key: {"value": one.value, "source": one.source}
                for one in self.policy.hints.values()
            },
            "unhonoured": list(self.unhonoured),
            "choices": [
                {
                    "step": one.step,
                    "op": one.op,
                    "kernel": one.kernel,
                    "reason": one.reason,
                    "follows_hints": one.unmet is None,
                }
                for one in self.choices
            ],
            "passes": [one.as_data() for one in self.passes],
        }


@dataclass(frozen=True)
class Row:
    """One line of a group: an op without its layer's number."""

    op: str
    kernel: str
    reason: str


@dataclass(frozen=True)
class Group:
    """Ops of one step that belong together: of some layers that are served alike, or of none."""

    step: str
    layers: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """E.g. `decode, layers 0-3 5`."""
        if not self.layers:
            return self.step
        word = "layer" if len(self.layers) == 1 else "layers"
        return f"{self.step}, {word} {_ranges(self.layers)}"


def explain(
    package: Package,
    policy: Policy,
    *,
    adapter: str | None = None,
    kv_dtype: str = "f16",
    context: int,
) -> Explanation:
    """Ask the runtime what it would choose.

    Args:
        package: Whose graph and tensor table count; no weights are read.
        policy: The hints.
        adapter: Part of an adapter's name; the best one when None.
        kv_dtype: Storage of the key-value cache.
        context: KV slots.

    Raises:
        DeviceError: No such adapter.
        FormatError: A tensor that no kernel reads.
    """
    from rdrr_device.device import open_device
    from rdrr_runtime.compile.decision import unhonoured
    from rdrr_runtime.compile.pass_spec import EXPLAINED
    from rdrr_runtime.exec.plan import dry_run_plan

    device = open_device(adapter)
    try:
        stored = read_profile(device.info)
        plan = dry_run_plan(package, device, policy, context, kv_dtype, stored.tuning)
        choices, passes = plan.decisions(EXPLAINED), plan.passes(EXPLAINED)
        return Explanation(device.info, policy, choices, passes, unhonoured(choices), stored)
    finally:
        device.close()


def grouped(choices: Iterable[Decision], *, alike: bool = True) -> list[Group]:
    """Choices by step and layer, in order.

    Args:
        choices: As the runtime made them.
        alike: Join layers that are served alike.
    """
    blocks: list[tuple[str, int | None, list[Row]]] = []
    for one in choices:
        layer, op = _place(one.op)
        if not blocks or blocks[-1][:2] != (one.step, layer):
            blocks.append((one.step, layer, []))
        blocks[-1][2].append(Row(op, one.kernel, one.reason))
    groups: dict[Any, list[int]] = {}
    for index, (step, layer, rows) in enumerate(blocks):
        separate = None if alike and layer is not None else index
        layers = groups.setdefault((step, tuple(rows), separate), [])
        layers += [] if layer is None else [layer]
    return [Group(step, tuple(layers), rows) for (step, rows, _), layers in groups.items()]


def _place(op: str) -> tuple[int | None, str]:
    """The layer that an op names, and what is left of the name without it."""
    found = _LAYER.search(op)
    if found is None:
        return None, op
    if found.start() == 0:
        return int(found[2]), op[found.end() :].lstrip(" .")
    return int(found[2]), f"{op[: found.start()]}{found[1]}*{op[found.end() :]}"


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def hint_lines(policy: Policy) -> Mapping[str, str]:
    """Each hint in force and who set it."""
    return {one.key: f"{one.value}, set by the {one.source}" for one in policy.hints.values()}
