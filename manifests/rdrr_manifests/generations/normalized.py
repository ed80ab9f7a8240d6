"""The result of translating a manifest, and the draft that the steps of the translation share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rdrr_manifests.faults import Fault


class Generation(StrEnum):
    """A generation of the format, named after the month in which it was current."""

    DECEMBER = "2025-12"
    JANUARY = "2026-01"
    CURRENT = "current"


@dataclass(frozen=True)
class Normalized:
    """A manifest translated into the current generation.

    Attributes:
        data: The manifest, with its tensors inline.
        generation: The generation it was written in.
        notes: Older spellings that were translated without loss.
        warnings: Assumptions that had to be made.
        inferred: Whether the blocks of `inference` were inferred from a raw configuration. They are
            a guess then, so rules do not report errors where the tensors contradict them.
    """

    data: dict[str, Any]
    generation: Generation
    notes: tuple[str, ...]
    warnings: tuple[Fault, ...]
    inferred: bool = False


@dataclass
class Draft:
    """A manifest that is being translated in place."""

    data: dict[str, Any]
    generation: Generation
    notes: list[str] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    inferred: bool = False

    @classmethod
    def of(cls, raw: Mapping[str, Any], generation: Generation) -> Draft:
        """Return a draft with a deep copy of a manifest."""
        return cls(copy.deepcopy(dict(raw)), generation)

    def note(self, text: str) -> None:
        """Record a translation without loss; repeated notes are recorded once."""
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, rule: str, where: str, message: str, found: str | None = None) -> None:
        """Record an assumption."""
        self.warnings.append(Fault(rule, "warning", where, message, found=found))

    def done(self) -> Normalized:
        """Return the translated manifest."""
        return Normalized(
            self.data, self.generation, tuple(self.notes), tuple(self.warnings), self.inferred
        )


def block(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under `key`, or a new empty one if there is no object under it."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def is_int(value: object) -> bool:
    """Return whether a JSON value is an integer and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number and not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
