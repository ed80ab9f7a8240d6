"""Kernel hints of one run: what each says and who said it.

Where several state the same key, the first of `SOURCES` wins; `auto` is no hint. What a hint means
for an op is decided in `rdrr_runtime.compile.preferences`. Configuration files are not read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rdrr_manifests.models import HINT_VALUES, parse_hint

SOURCES = ("run flag", "runtime configuration", "manifest")
"""Who may state hints, from the strongest to the weakest."""


@dataclass(frozen=True)
class Hint:
    """One hint in force.

    Attributes:
        key: E.g. `q4kMatmul`.
        value: One of the key's values, never `auto`.
        source: One of `SOURCES`.
    """

    key: str
    value: str
    source: str

    def __str__(self) -> str:
        return f"{self.key}={self.value} ({self.source})"

    def outranks(self, other: Hint) -> bool:
        """Whether its source is stronger than the other's."""
        return SOURCES.index(self.source) < SOURCES.index(other.source)


@dataclass(frozen=True)
class Policy:
    """The hints of a run; a key that is absent leaves the choice to heuristics.

    Attributes:
        hints: By key.
    """

    hints: Mapping[str, Hint] = field(default_factory=lambda: MappingProxyType({}))

    def get(self, key: str) -> Hint | None:
        """The hint of a key, or None."""
        return self.hints.get(key)


def resolve(stated: Mapping[str, Mapping[str, str]]) -> Policy:
    """The strongest statement for each key.

    Args:
        stated: Keys and values by source.

    Raises:
        UsageError: An unknown key, or a value that the key does not have.
    """
    found: dict[str, Hint] = {}
    for source in SOURCES:
        for key, value in stated.get(source, {}).items():
            parse_hint(f"{key}={value}")
            if value != "auto":
                found.setdefault(key, Hint(key, value, source))
    return Policy(MappingProxyType({key: found[key] for key in HINT_VALUES if key in found}))
