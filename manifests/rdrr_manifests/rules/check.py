"""Run the structural rules on a manifest: from its JSON to the typed manifest and its faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rdrr_format.errors import ManifestError

from rdrr_manifests.faults import Fault, of_severity
from rdrr_manifests.generations import Normalized, normalize
from rdrr_manifests.graph import Graph
from rdrr_manifests.models import Manifest
from rdrr_manifests.rules import schema
from rdrr_manifests.rules.subject import Subject
from rdrr_manifests.rules.table import STRUCTURE

_RUNNABLE_RULES = frozenset({"graph-support", "graph-types", "graph-weights", "graph-shapes"})


@dataclass(frozen=True)
class Examination:
    """The result of the structural rules.

    Attributes:
        normalized: The manifest as JSON values, translated into the current generation.
        faults: Every fault, in the order of the rules.
        subject: The manifest that the rules examined; None if no part of it passed the schema.
    """

    normalized: Normalized
    faults: tuple[Fault, ...]
    subject: Subject | None = field(repr=False)

    @property
    def manifest(self) -> Manifest | None:
        """The typed manifest; None if there are errors."""
        if self.subject is None or of_severity(self.faults, "error"):
            return None
        return self.subject.manifest

    @cached_property
    def graph(self) -> Graph | ManifestError:
        """The graph, or the reason why this version of rdrr cannot run the package."""
        reasons = tuple(fault for fault in self.faults if fault.rule in _RUNNABLE_RULES)
        if not reasons and self.subject is not None and not self.subject.broken:
            return self.subject.derivation
        if not reasons:
            return ManifestError("not runnable here: the manifest has faults", faults=self.faults)
        first = reasons[0]
        if len(reasons) > 1:
            listed = "; ".join(
                f"{fault.field}: {fault.found or fault.message}" for fault in reasons
            )
            message = f"not runnable here for {len(reasons)} reasons: {listed}"
            return ManifestError(message, faults=reasons)
        return ManifestError(
            first.message,
            where=first.field,
            expected=first.expected,
            found=first.found,
            faults=reasons,
        )


def examine(
    raw: Mapping[str, Any],
    *,
    external_tensors: Mapping[str, Any] | None = None,
    has_tensors: bool = True,
) -> Examination:
    """Translate a manifest into the current generation and run every structural rule.

    Args:
        raw: The manifest's JSON object, of any generation.
        external_tensors: Content of its `tensorsFile`; None if it has none.
        has_tensors: False if the tensor table is an external file that is not available; the rules
            on tensors then find nothing.
    """
    normalized = normalize(raw, external_tensors)
    data = normalized.data if has_tensors else {**normalized.data, "tensors": {}}
    parsed = schema.parse(data)
    faults = [*normalized.warnings, *parsed.faults]
    if parsed.manifest is None:
        return Examination(normalized, tuple(faults), None)
    subject = Subject(
        manifest=parsed.manifest,
        raw=normalized.data,
        generation=normalized.generation,
        inferred=normalized.inferred,
        broken=parsed.broken,
        broken_tensors=parsed.broken_tensors,
        has_tensors=has_tensors,
    )
    for rule in STRUCTURE:
        faults.extend(rule.faults(subject))
    return Examination(normalized, tuple(faults), subject)
