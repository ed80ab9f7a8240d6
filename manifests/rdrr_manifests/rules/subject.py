"""The data types of rules: the manifest under examination, a finding, and a rule."""

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
from rdrr_manifests.graph import Graph, derive_graph, derive_mtp
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.models import Manifest

_LAYER_NAME = re.compile(r"^layers\.(\d+)\.(.+)$")


class Finding(NamedTuple):
    """One finding of a rule; the rule's id and severity are added when it is reported.

    Attributes:
        field: Path of the field in the manifest, or a file's name.
        message: What is wrong, as a short phrase.
        expected: What the format requires.
        found: What the package contains.
        severity: Severity of this finding; that of the rule when None.
    """

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
        raw: The manifest as JSON values, translated into the current generation.
        generation: Generation that it was written in.
        inferred: Whether `inference` was inferred from a raw configuration.
        broken: Top-level keys whose content the schema refused.
        broken_tensors: Names of the tensors whose entries the schema refused; they are missing in
            `manifest`.
        has_tensors: Whether the tensor table could be read; false if it is an external file that
            is not available.
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
        """Whether rdrr's converter wrote the package."""
        conversion = self.raw.get("conversion")
        is_tool = isinstance(conversion, dict) and conversion.get("tool") == "rdrr"
        return is_tool and self.generation is Generation.CURRENT

    @cached_property
    def names(self) -> TensorNames:
        """The names of all tensors, including those with refused entries."""
        return TensorNames([*self.manifest.tensors, *self.broken_tensors])

    @cached_property
    def layer_parts(self) -> Mapping[str, frozenset[int]]:
        """The layers that have each part of a layer, by its name (`self_attn.q_proj.weight`)."""
        present: dict[str, set[int]] = {}
        prefix = self.names.prefix
        for name in (*self.manifest.tensors, *self.broken_tensors):
            match = (
                _LAYER_NAME.match(name.removeprefix(prefix)) if name.startswith(prefix) else None
            )
            # Longer numbers are not layer numbers, and int() raises for thousands of digits.
            if match and len(match[1]) <= 6:
                present.setdefault(match[2], set()).add(int(match[1]))
        return {part: frozenset(layers) for part, layers in present.items()}

    @cached_property
    def layers_present(self) -> int:
        """One more than the highest layer number among the tensors."""
        return 1 + max((max(layers) for layers in self.layer_parts.values()), default=-1)

    @cached_property
    def derivation(self) -> Graph | ManifestError:
        """The graph, or the error that explains why this version of rdrr cannot derive it."""
        layers = self.manifest.architecture.num_layers
        if layers > len(self.manifest.tensors) + len(self.broken_tensors):
            # Deriving takes time for every layer, and a hostile manifest may state millions.
            return ManifestError(
                "the package has fewer tensors than layers", where="architecture.numLayers"
            )
        try:
            return derive_graph(self.manifest, [*self.manifest.tensors, *self.broken_tensors])
        except ManifestError as error:
            return error

    @property
    def graph(self) -> Graph | None:
        """The graph; None if this version of rdrr cannot derive it."""
        return self.derivation if isinstance(self.derivation, Graph) else None

    @cached_property
    def mtp(self) -> Graph | ManifestError | None:
        """The graph of the draft head, or what is wrong with it; None if there is none."""
        if self.graph is None:
            return None
        try:
            return derive_mtp(self.manifest, [*self.manifest.tensors, *self.broken_tensors])
        except ManifestError as error:
            return error


Check = Callable[[Subject], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        id: Identifier of the rule in reports and in docs/SPEC.md.
        check: Yields the findings for a manifest.
        severity: Severity of findings that do not state their own.
        needs: Top-level keys that the check reads; it is skipped if the schema refused one of them.
    """

    id: str
    check: Check
    severity: Severity = "error"
    needs: tuple[str, ...] = ()

    def faults(self, subject: Subject) -> Iterator[Fault]:
        """Yield the faults that this rule finds; none if the schema refused a key that it needs."""
        if subject.broken.intersection(self.needs):
            return
        for finding in self.check(subject):
            yield as_fault(self.id, self.severity, finding)


def as_fault(rule: str, severity: Severity, finding: Finding) -> Fault:
    """Return a finding as a fault of a rule, with untrusted values made printable."""
    return Fault(
        rule,
        finding.severity or severity,
        printable(finding.field),
        printable(finding.message),
        None if finding.expected is None else shown(finding.expected),
        None if finding.found is None else shown(finding.found),
    )
