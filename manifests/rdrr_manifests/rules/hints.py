"""Rules on `optimizations.kernelHints`."""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_manifests.faults import shown
from rdrr_manifests.models.hints import HINT_VALUES
from rdrr_manifests.rules.subject import Finding, Rule, Subject

_WHERE = "optimizations.kernelHints"


def keys(subject: Subject) -> Iterator[Finding]:
    """Check that every hint is known."""
    for key in subject.manifest.kernel_hints.model_extra or {}:
        expected = "one of " + ", ".join(HINT_VALUES)
        yield Finding(f"{_WHERE}.{shown(key)}", "the hint is unknown and is ignored", expected)


def values(subject: Subject) -> Iterator[Finding]:
    """Check that every hint has one of its values."""
    stated = subject.manifest.kernel_hints.model_dump(by_alias=True)
    for key, allowed in HINT_VALUES.items():
        if stated[key] not in allowed:
            yield Finding(
                f"{_WHERE}.{key}",
                "the hint does not have this value",
                "one of " + ", ".join(allowed),
                stated[key],
            )


RULES = (
    Rule("hint-key", keys, "warning", ("optimizations",)),
    Rule("hint-value", values, needs=("optimizations",)),
)
