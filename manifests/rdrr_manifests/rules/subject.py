"""What rules look at, and how a rule is stated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rdrr_format.errors import ManifestError
from rdrr_format.printing import printable

from rdrr_manifests.faults import Fault, Severity, shown
from rdrr_manifests.generations import Generation
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.models import Manifest

_LAYER_NAME = re.compile(r"^layers\.(\d+)\.(.+)$")


class Finding(NamedTuple):
    """One finding of a rule; the rule's id and severity are added when it is reported."""

    field: str
    message: str
    expected: object = None
    found: object = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Subject:
    """A manifest under examination.

    Attributes:
        manifest: The typed manifest; parts that the schema refused are replaced or left out.
        raw: The JSON as written.
        generation: Generation it was written in.
        inferred: `inference` is a guess from a raw configuration.
        broken: Top-level keys whose content the schema refused.
        broken_tensors: Names of entries that the schema refused, absent from `manifest`.
        has_tensors: The tensor table could be read; false when it is an external file that is
            not at hand.
    """

    manifest: Manifest
    raw: Mapping[str, Any]
    generation: Generation
    inferred: bool = False
    broken: frozenset[str] = frozenset()
    broken_tensors: frozenset[str] = frozenset()
    has_tensors: bool = True

    @property
    def is_written_by_rdrr(self) -> bool:
        """Whether this project's converter wrote the package."""
        conversion = self.raw.get("conversion")
        is_tool = isinstance(conversion, dict) and conversion.get("tool") == "rdrr"
        return is_tool and self.generation is Generation.CURRENT

    @cached_property
    def names(self) -> TensorNames:
        """The tensors' names, those of refused entries included."""
        return TensorNames([*self.manifest.tensors, *self.broken_tensors])

    @cached_property
    def layer_parts(self) -> Mapping[str, frozenset[int]]:
        """Each part of a layer (`self_attn.q_proj.weight`) and the layers that have it."""
        found: dict[str, set[int]] = {}
        prefix = self.names.prefix
        for name in (*self.manifest.tensors, *self.broken_tensors):
            match = (
                _LAYER_NAME.match(name.removeprefix(prefix)) if name.startswith(prefix) else None
            )
            # A layer number that long is no layer's; int() would refuse thousands of digits.
            if match and len(match[1]) <= 6:
                found.setdefault(match[2], set()).add(int(match[1]))
        return {part: frozenset(layers) for part, layers in found.items()}

    @cached_property
    def layers_present(self) -> int:
        """One more than the highest layer that any tensor belongs to."""
        return 1 + max((max(layers) for layers in self.layer_parts.values()), default=-1)

    @cached_property
    def derivation(self) -> Graph | ManifestError:
        """The graph, or why this version of rdrr cannot derive one."""
        layers = self.manifest.architecture.num_layers
        if layers > len(self.manifest.tensors) + len(self.broken_tensors):
            # Deriving costs time for every layer, which a hostile manifest may state by millions.
            return ManifestError("fewer tensors than layers", where="architecture.numLayers")
        try:
            return derive_graph(self.manifest, [*self.manifest.tensors, *self.broken_tensors])
        except ManifestError as error:
            return error

    @property
    def graph(self) -> Graph | None:
        """The graph, if there is one."""
        return self.derivation if isinstance(self.derivation, Graph) else None


Check = Callable[[Subject], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: What reports and docs/SPEC.md call it.
        check: Yields what breaks the rule.
        severity: Of its findings, unless one says otherwise.
        needs: Top-level keys that must have passed the schema for the check to make sense.
    """

    id: str
    check: Check
    severity: Severity = "error"
    needs: tuple[str, ...] = ()

    def faults(self, subject: Subject) -> Iterator[Fault]:
        """What breaks this rule; nothing where the schema already refused what it needs."""
        if subject.broken.intersection(self.needs):
            return
        for finding in self.check(subject):
            yield as_fault(self.id, self.severity, finding)


def as_fault(rule: str, severity: Severity, finding: Finding) -> Fault:
    """A finding under its rule's name, with foreign values made printable."""
    return Fault(
        rule,
        finding.severity or severity,
        printable(finding.field),
        printable(finding.message),
        None if finding.expected is None else shown(finding.expected),
        None if finding.found is None else shown(finding.found),
    )
