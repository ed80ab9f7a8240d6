"""The steps of `inference.execution`, as published manifests state them.

The public runtime runs these steps. rdrr derives its own graph from the typed blocks and runs that;
the steps serve to compare the two. Entries that are not steps are skipped here, and reported by
`rdrr validate --profile doppler`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rdrr_manifests.models import Manifest

STAGES = ("preLayer", "decode", "prefill", "postLayer")
"""The stages of an execution graph, in the order in which they run."""


@dataclass(frozen=True)
class ExecutionStep:
    """A step of an execution graph.

    Attributes:
        stage: One of `STAGES`.
        name: What it computes, such as `q_proj`.
        file: WGSL file of its kernel; None if the graph does not list the kernel.
        entry: Entry point of the kernel.
        layers: Layers that it runs in; None for all layers, or outside the layers.
    """

    stage: str
    name: str
    file: str | None
    entry: str | None
    layers: tuple[int, ...] | None = None


def execution_steps(manifest: Manifest) -> tuple[ExecutionStep, ...]:
    """Return the steps of a manifest's execution graph; none if it has no such graph."""
    graph = (manifest.inference.model_extra or {}).get("execution")
    if not isinstance(graph, Mapping):
        return ()
    kernels = graph.get("kernels")
    table = kernels if isinstance(kernels, Mapping) else {}
    return tuple(step for stage in STAGES for step in _steps(graph.get(stage), stage, table, None))


def _steps(
    entries: Any, stage: str, kernels: Mapping[str, Any], layers: tuple[int, ...] | None
) -> Iterator[ExecutionStep]:
    """Yield the steps of a list; an object in it holds the steps of some layers."""
    for step in entries if isinstance(entries, list | tuple) else ():
        if isinstance(step, Mapping) and layers is None:
            stated = step.get("layers")
            numbers = stated if isinstance(stated, list | tuple) else ()
            of = tuple(number for number in numbers if isinstance(number, int))
            yield from _steps(step.get("steps"), stage, kernels, of)
        elif isinstance(step, list | tuple) and len(step) > 1 and isinstance(step[0], str):
            kernel = kernels.get(step[1]) if isinstance(step[1], str) else None
            facts = kernel if isinstance(kernel, Mapping) else {}
            file, entry = facts.get("kernel"), facts.get("entry")
            yield ExecutionStep(
                stage,
                step[0],
                file if isinstance(file, str) else None,
                entry if isinstance(entry, str) else None,
                layers,
            )
