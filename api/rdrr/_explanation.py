"""Which kernels would run a package on an adapter, and why, without loading the weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import DeviceError, UsageError

from rdrr._execution_graph import ServedStep, served_steps
from rdrr._executor import executor_decision, tuned_executor
from rdrr._tuned import TunedProfile, read_profile
from rdrr._webgpu import WebGpuDecision, decide

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_device.capabilities import Capabilities
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.decision import Decision
    from rdrr_runtime.compile.choice.hints import Policy
    from rdrr_runtime.compile.lowering.graph import Pass

    from rdrr._load_options import WebGpuChoice

# How tensors, values and fused ops name the layer they belong to.
_LAYER = re.compile(r"\b(layers\.|layer |l)(\d+)\b")


@dataclass(frozen=True)
class Explanation:
    """The kernels that are chosen for one package on one adapter.

    Attributes:
        adapter: The adapter.
        policy: The kernel hints in force.
        choices: The kernel of each op and the reason, for loading, decode and prefill in turn.
        passes: The phases of each pass, in the order in which they run.
        unhonoured: One line for each hint that some op does not honour.
        tuned: The tuned profile of the adapter.
        served: The steps of the manifest's execution graph, if it has one, and what serves them.
        webgpu: The implementation of WebGPU and why it is used; None for a described adapter.
    """

    adapter: AdapterInfo
    policy: Policy
    choices: tuple[Decision, ...]
    passes: tuple[Pass, ...]
    unhonoured: tuple[str, ...]
    tuned: TunedProfile
    served: tuple[ServedStep, ...] = ()
    webgpu: WebGpuDecision | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return {
            "adapter": self.adapter.name,
            "software": self.adapter.software,
            "webgpu": None if self.webgpu is None else asdict(self.webgpu),
            "tuned_profile": {
                "path": str(self.tuned.path),
                "shapes": len(self.tuned.entries),
                "note": self.tuned.note,
            },
            "hints": {
                hint.key: {"value": hint.value, "source": hint.source}
                for hint in self.policy.hints.values()
            },
            "unhonoured": list(self.unhonoured),
            "choices": [
                {
                    "step": choice.step,
                    "op": choice.op,
                    "kernel": choice.kernel,
                    "reason": choice.reason,
                    "follows_hints": choice.unmet is None,
                }
                for choice in self.choices
            ],
            "passes": [planned.as_data() for planned in self.passes],
            "execution_graph": [step.as_dict() for step in self.served],
        }


@dataclass(frozen=True)
class Row:
    """One line of a group: an op, named without the number of its layer."""

    op: str
    kernel: str
    reason: str


@dataclass(frozen=True)
class Group:
    """The ops of one step in layers that use the same kernels, or the ops outside any layer."""

    step: str
    layers: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Heading of the group, like `decode, layers 0-3 5`."""
        if not self.layers:
            return self.step
        word = "layer" if len(self.layers) == 1 else "layers"
        return f"{self.step}, {word} {_ranges(self.layers)}"


def explain(
    package: Package,
    policy: Policy,
    *,
    adapter: str | Path | None = None,
    webgpu: WebGpuChoice = "auto",
    kv_dtype: str = "f16",
    context: int,
) -> Explanation:
    """Return what the runtime would choose for a package.

    Args:
        package: The package; its graph and tensor table are used, and no weights are read.
        policy: The kernel hints.
        adapter: Part of an adapter's name, or a file that describes the capabilities of one; the
            best adapter when None.
        webgpu: The implementation of WebGPU, whose limits and features differ.
        kv_dtype: Data type of the key-value cache.
        context: Number of slots of the key-value cache.

    Raises:
        DeviceError: There is no such adapter.
        FormatError: No kernel can read one of the tensors, or the file describes no capabilities.
        UsageError: The file cannot be read.
    """
    from rdrr_manifests.doppler import execution_steps
    from rdrr_runtime.compile.choice.decision import unhonoured
    from rdrr_runtime.exec.plan import dry_run_plan

    info, capabilities, through = planned_for(adapter, webgpu)
    stored = read_profile(info)
    plan = dry_run_plan(package, capabilities, policy, context, kv_dtype, stored.tuning)
    whole = executor_decision(tuned_executor(stored, package, kv_dtype))
    specs = plan.explained
    choices, passes = (whole, *plan.decisions(specs)), plan.passes(specs)
    served = served_steps(execution_steps(package.manifest), choices)
    return Explanation(
        info, policy, choices, passes, unhonoured(choices), stored, served, webgpu=through
    )


def planned_for(
    adapter: str | Path | None, webgpu: WebGpuChoice = "auto"
) -> tuple[AdapterInfo, Capabilities, WebGpuDecision | None]:
    """Return the adapter that a name or a file means, what can be done on it, and through what."""
    from rdrr_device.adapters import DRIVER_HINT, choose, described_adapter
    from rdrr_device.capabilities import read_capabilities

    if not isinstance(adapter, Path):
        try:
            through = decide(webgpu, adapter)
            info = choose(through.name, adapter)
        except DeviceError as error:
            if error.hint == DRIVER_HINT:
                error.hint = f"{DRIVER_HINT} or describe a device in a file, by `capabilities`"
            raise
        return info, info.capabilities, through
    try:
        text = adapter.read_bytes()
    except OSError as error:
        raise UsageError(
            "the capabilities cannot be read", where=adapter, found=error.strerror
        ) from error
    capabilities = read_capabilities(text, adapter.name)
    return described_adapter(capabilities, adapter.name), capabilities, None


def grouped(choices: Iterable[Decision], *, alike: bool = True) -> list[Group]:
    """Group choices by step and layer, in the order in which they run.

    Args:
        choices: The choices of the runtime.
        alike: Whether layers with the same kernels for all ops form one group.
    """
    blocks: list[tuple[str, int | None, list[Row]]] = []
    for choice in choices:
        layer, op = _split_layer(choice.op)
        if not blocks or blocks[-1][:2] != (choice.step, layer):
            blocks.append((choice.step, layer, []))
        blocks[-1][2].append(Row(op, choice.kernel, choice.reason))
    groups: dict[Any, list[int]] = {}
    for index, (step, layer, rows) in enumerate(blocks):
        separate = None if alike and layer is not None else index
        layers = groups.setdefault((step, tuple(rows), separate), [])
        layers += [] if layer is None else [layer]
    return [Group(step, tuple(layers), rows) for (step, rows, _), layers in groups.items()]


def _split_layer(op: str) -> tuple[int | None, str]:
    """Return the layer in the name of an op, and the name without it."""
    match = _LAYER.search(op)
    if match is None:
        return None, op
    if match.start() == 0:
        return int(match[2]), op[match.end() :].lstrip(" .")
    return int(match[2]), f"{op[: match.start()]}{match[1]}*{op[match.end() :]}"


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def hint_lines(policy: Policy) -> Mapping[str, str]:
    """Return the value of each hint in force and the source that set it."""
    return {hint.key: f"{hint.value}, set by the {hint.source}" for hint in policy.hints.values()}
