"""The kernel hints of a run: the value of each, and the source that set it.

If several sources set the same key, the first of `SOURCES` wins. The value `auto` counts as no
hint. What a hint means for an op is decided in `preferences`. Configuration files are not read
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rdrr_manifests.models import HINT_VALUES, parse_hint

SOURCES = ("run flag", "runtime configuration", "manifest")
"""The sources of hints, from the strongest to the weakest."""


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
        """Return whether its source is stronger than that of the other hint."""
        return SOURCES.index(self.source) < SOURCES.index(other.source)


@dataclass(frozen=True)
class Policy:
    """The hints of a run; a key that is absent leaves the choice to heuristics.

    Attributes:
        hints: By key.
        keeps_tables_on_host: Whether tables with inputs for each layer stay in the package, from
            which the host reads the rows of each pass.
        keeps_rounded: Whether matrices that are rounded to rows for batches and prompts are rounded
            once, into memory of their own, and not before each product.
    """

    hints: Mapping[str, Hint] = field(default_factory=lambda: MappingProxyType({}))
    keeps_tables_on_host: bool = False
    keeps_rounded: bool = False

    def get(self, key: str) -> Hint | None:
        """Return the hint of a key, or None."""
        return self.hints.get(key)


def resolve(stated: Mapping[str, Mapping[str, str]]) -> Policy:
    """Return the hints in force: for each key the one from the strongest source.

    Args:
        stated: The keys and values that each source sets.

    Raises:
        UsageError: A key is unknown, or does not have the value.
    """
    hints: dict[str, Hint] = {}
    for source in SOURCES:
        for key, value in stated.get(source, {}).items():
            parse_hint(f"{key}={value}")
            if value != "auto":
                hints.setdefault(key, Hint(key, value, source))
    return Policy(MappingProxyType({key: hints[key] for key in HINT_VALUES if key in hints}))
