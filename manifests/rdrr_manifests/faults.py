"""Faults of a package, as data: one `Fault` for each finding, and a report of all of them.

Rules find faults and commands print them; this module decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rdrr_format.html_tables import facts_table, rows_table
from rdrr_format.printing import printable

Severity = Literal["error", "warning"]
Level = Literal["structure", "files", "deep"]

MAX_TEXT = 160
"""Most characters of a value from a manifest that a message quotes; some are megabytes long."""


def shown(value: object) -> str:
    """Return an untrusted value as text for a terminal: printable, on one line, and short."""
    text = printable(value if isinstance(value, str) else repr(value))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def tensor_field(name: str, part: str | None = None) -> str:
    """Return the field path of a tensor's entry, or of one field of the entry."""
    path = f'tensors["{shown(name)}"]'
    return path if part is None else f"{path}.{part}"


@dataclass(frozen=True)
class Fault:
    """One finding.

    Attributes:
        rule: Id of the rule, as in docs/SPEC.md.
        severity: An error makes the package invalid; a warning does so only under `strict`.
        field: Path of the field in the manifest, such as `shards[2].hash`, or a file's name.
        message: What is wrong, as a short phrase.
        expected: What the format requires.
        found: What the package contains.
    """

    rule: str
    severity: Severity
    field: str
    message: str
    expected: str | None = None
    found: str | None = None

    def line(self) -> str:
        """Return the finding as one line of text."""
        facts = [
            f"{label} {value}"
            for label, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        where = f"{self.field}: " if self.field else ""
        text = f"{self.severity} [{self.rule}] {where}{self.message}"
        return f"{text} ({', '.join(facts)})" if facts else text

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values, without the fields that are None."""
        facts = {
            "rule": self.rule,
            "severity": self.severity,
            "field": self.field,
            "message": self.message,
            "expected": self.expected,
            "found": self.found,
        }
        return {key: value for key, value in facts.items() if value is not None}


@dataclass(frozen=True, repr=False)
class ValidationReport:
    """The result of a validation.

    Attributes:
        where: The path or URL that was validated, as given.
        level: What was checked: `structure` (the manifest alone), `files` (also that the shards and
            the tokenizer exist with the right sizes) or `deep` (also hashes and values).
        faults: Every finding, in the order of the rules.
        model_id: Name of the package; None if the manifest could not be read that far.
        generation: Generation of the format that the manifest was written in.
        notes: Older spellings that were read as the current ones; they are harmless.
        runnable: Whether this version of rdrr has an op for everything in the model.
        facts: Numbers of `shards`, `tensors` and `bytes`.
        strict: Whether warnings make the package invalid.
    """

    where: str
    level: Level
    faults: tuple[Fault, ...]
    model_id: str | None = None
    generation: str | None = None
    notes: tuple[str, ...] = ()
    runnable: bool = False
    facts: Mapping[str, int] | None = None
    strict: bool = False

    @property
    def errors(self) -> tuple[Fault, ...]:
        """The faults that make the package invalid."""
        return of_severity(self.faults, "error")

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """The faults that make the package invalid only under `strict`."""
        return of_severity(self.faults, "warning")

    def ok(self, strict: bool | None = None) -> bool:
        """Return whether the package is valid.

        Args:
            strict: Whether warnings make it invalid; the report's own `strict` when None.
        """
        is_strict = self.strict if strict is None else strict
        return not (self.faults if is_strict else self.errors)

    def __repr__(self) -> str:
        return (
            f"ValidationReport({shown(self.where)!r}, {'valid' if self.ok() else 'invalid'}, "
            f"level={self.level!r}, errors={len(self.errors)}, warnings={len(self.warnings)})"
        )

    def _repr_html_(self) -> str:
        """Return a table of the findings for notebooks."""
        verdict = "valid" if self.ok() else "invalid"
        title = f"{shown(self.where)}: {verdict} ({self.level})"
        if not self.faults:
            facts = {"model": self.model_id and shown(self.model_id), **(self.facts or {})}
            return facts_table(title, facts)
        columns = ("severity", "rule", "field", "message", "expected", "found")
        rows = [
            (fault.severity, fault.rule, fault.field, fault.message, fault.expected, fault.found)
            for fault in self.faults
        ]
        return rows_table(title, columns, rows)

    def as_dict(self, strict: bool | None = None) -> dict[str, Any]:
        """Return the report as JSON values.

        Args:
            strict: Whether warnings make it invalid; the report's own `strict` when None.
        """
        return {
            "path": self.where,
            "valid": self.ok(strict),
            "level": self.level,
            "model_id": self.model_id,
            "generation": self.generation,
            "runnable": self.runnable,
            "errors": [fault.as_dict() for fault in self.errors],
            "warnings": [fault.as_dict() for fault in self.warnings],
            "notes": list(self.notes),
            "facts": dict(self.facts or {}),
        }


def of_severity(faults: Sequence[Fault], severity: Severity) -> tuple[Fault, ...]:
    """Return the faults of one severity, in order."""
    return tuple(fault for fault in faults if fault.severity == severity)
