"""What normalising yields, and the draft that the steps of it share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rdrr_manifests.faults import Fault


class Generation(StrEnum):
    """A generation of the format, by the month it was current in."""

    DECEMBER = "2025-12"
    JANUARY = "2026-01"
    CURRENT = "current"


@dataclass(frozen=True)
class Normalized:
    """A manifest in the current generation's words.

    Attributes:
        data: The manifest; tensors are inline.
        generation: The one it was written in.
        notes: Older spellings that were translated without loss.
        warnings: What had to be assumed.
        inferred: The blocks of `inference` were derived from a raw configuration, so they are
            a guess that the rules must not hold against the tensors.
    """

    data: dict[str, Any]
    generation: Generation
    notes: tuple[str, ...]
    warnings: tuple[Fault, ...]
    inferred: bool = False


@dataclass
class Draft:
    """A manifest while its words are being replaced."""

    data: dict[str, Any]
    generation: Generation
    notes: list[str] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    inferred: bool = False

    @classmethod
    def of(cls, raw: Mapping[str, Any], generation: Generation) -> Draft:
        """A draft that shares nothing with the manifest it comes from."""
        return cls(copy.deepcopy(dict(raw)), generation)

    def note(self, text: str) -> None:
        """Record a translation, once."""
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, rule: str, where: str, message: str, found: str | None = None) -> None:
        """Record an assumption."""
        self.warnings.append(Fault(rule, "warning", where, message, found=found))

    def done(self) -> Normalized:
        """The finished manifest."""
        return Normalized(
            self.data, self.generation, tuple(self.notes), tuple(self.warnings), self.inferred
        )


def block(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under `key`, or a new empty one where there is none (or something else)."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def is_int(value: object) -> bool:
    """Whether a JSON value is an integer; JSON's booleans are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
