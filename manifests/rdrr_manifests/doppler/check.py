"""The rules of the profile `doppler`: what DOPPLER needs of a manifest, as faults of a validation.

doppler-support     a property of the model that DOPPLER cannot run, or computes differently
doppler-session     a field of `inference.session` that DOPPLER refuses to do without
doppler-execution   an execution graph that is missing, or names a kernel that does not exist
doppler-kernel (w)  a kernel that was not tried, or another version of it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rdrr_manifests.doppler.execution import SCHEMA
from rdrr_manifests.doppler.kernels import KERNELS, VERSION
from rdrr_manifests.doppler.limits import obstacles
from rdrr_manifests.doppler.session import SESSION
from rdrr_manifests.doppler.steps import STAGES
from rdrr_manifests.faults import Fault, shown
from rdrr_manifests.models import Manifest

_GRAPH = "inference.execution"


def profile_faults(manifest: Manifest) -> Iterator[Fault]:
    """Yield the faults of a manifest under the profile `doppler`."""
    for obstacle in obstacles(manifest):
        yield Fault(
            "doppler-support",
            "error",
            obstacle.field,
            obstacle.message,
            obstacle.expected,
            shown(obstacle.found),
        )
    for path in _missing(SESSION, manifest.inference.session, "inference.session"):
        yield Fault("doppler-session", "error", path, "the field is missing")
    yield from _graph_faults(manifest)


def _missing(wanted: Mapping[str, Any], stated: object, path: str) -> Iterator[str]:
    """Yield the paths of the fields of `wanted` that `stated` lacks."""
    if not isinstance(stated, Mapping):
        yield path
        return
    for key, value in wanted.items():
        if key not in stated:
            yield f"{path}.{key}"
        elif isinstance(value, Mapping):
            yield from _missing(value, stated[key], f"{path}.{key}")


def _graph_faults(manifest: Manifest) -> Iterator[Fault]:
    graph = (manifest.inference.model_extra or {}).get("execution")
    schema = manifest.inference.schema_name
    if schema != SCHEMA or not isinstance(graph, Mapping):
        message = "there is no execution graph, without which DOPPLER does not run a package"
        yield Fault("doppler-execution", "error", _GRAPH, message, SCHEMA, shown(schema))
        return
    kernels = graph.get("kernels")
    names = kernels if isinstance(kernels, Mapping) else {}
    for stage in STAGES:
        steps = graph.get(stage)
        for number, step in enumerate(steps if isinstance(steps, list | tuple) else ()):
            if not (isinstance(step, list | tuple) and len(step) > 1 and step[1] in names):
                path = f"{_GRAPH}.{stage}[{number}]"
                message = "the step names no kernel of the graph"
                yield Fault("doppler-execution", "error", path, message, None, shown(step))
        if not isinstance(steps, list | tuple) or not steps:
            message = "the stage has no steps"
            yield Fault("doppler-execution", "error", f"{_GRAPH}.{stage}", message)
    yield from _kernel_faults(names)


def _kernel_faults(kernels: Mapping[str, Any]) -> Iterator[Fault]:
    tried = {(kernel.file, kernel.entry): f"sha256:{kernel.digest}" for kernel in KERNELS.values()}
    for name, entry in kernels.items():
        stated = entry if isinstance(entry, Mapping) else {}
        digest = tried.get((str(stated.get("kernel")), str(stated.get("entry"))))
        if digest is None or digest != stated.get("digest"):
            message = f"the kernel is not one that was tried with DOPPLER {VERSION}"
            path = f"{_GRAPH}.kernels.{shown(name)}"
            yield Fault(
                "doppler-kernel", "warning", path, message, digest, shown(stated.get("digest"))
            )
