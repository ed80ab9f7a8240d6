"""What is wrong with a package, as data: one `Fault` for each finding, one report for all.

Rules find faults, commands print them. Nothing here decides what is wrong.
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
"""Characters of a foreign value that a message repeats; a manifest may hold megabytes of them."""


def shown(value: object) -> str:
    """A foreign value made fit for a terminal: printable, on one line, and short."""
    text = printable(value if isinstance(value, str) else repr(value))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def tensor_field(name: str, part: str | None = None) -> str:
    """Field path of a tensor's entry, or of a part of it."""
    path = f'tensors["{shown(name)}"]'
    return path if part is None else f"{path}.{part}"


@dataclass(frozen=True)
class Fault:
    """One finding.

    Attributes:
        rule: Id of the rule, as in docs/SPEC.md.
        severity: An error makes the package invalid; a warning does so only under `strict`.
        field: Path in the manifest (`shards[2].hash`), or a file's name.
        message: What is wrong, in a few words.
        expected: What would have been right.
        found: What was there instead.
    """

    rule: str
    severity: Severity
    field: str
    message: str
    expected: str | None = None
    found: str | None = None

    def line(self) -> str:
        """The whole finding on one line."""
        facts = [
            f"{label} {value}"
            for label, value in (("expected", self.expected), ("found", self.found))
            if value is not None
        ]
        where = f"{self.field}: " if self.field else ""
        text = f"{self.severity} [{self.rule}] {where}{self.message}"
        return f"{text} ({', '.join(facts)})" if facts else text

    def as_dict(self) -> dict[str, Any]:
        """The same facts as an object, for `--json`."""
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
    """Everything a validation found.

    Attributes:
        where: The path or URL as given.
        level: How far it went: `structure` (the manifest alone), `files` (the shards and the
            tokenizer are there, with the right sizes) or `deep` (hashes and values too).
        faults: Every finding, in the order of the rules.
        model_id: The package's name, when the manifest could be read that far.
        generation: Generation of the format that it was written in.
        notes: Older spellings that were read as the current ones; harmless.
        runnable: Whether this version of rdrr has an op for everything the model does.
        facts: Counts worth printing: shards, tensors, bytes.
        strict: Whether a warning was asked to be enough to fail the package.
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
        """The faults that do not, unless strictness is asked for."""
        return of_severity(self.faults, "warning")

    def ok(self, strict: bool | None = None) -> bool:
        """Whether the package is valid.

        Args:
            strict: A warning is enough to fail it; None for what was asked of the validation.
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
            (one.severity, one.rule, one.field, one.message, one.expected, one.found)
            for one in self.faults
        ]
        return rows_table(title, columns, rows)

    def as_dict(self, strict: bool | None = None) -> dict[str, Any]:
        """The report as one object, for `--json`."""
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
    """The faults of one severity, in order."""
    return tuple(fault for fault in faults if fault.severity == severity)
