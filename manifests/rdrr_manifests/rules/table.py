"""All structural rules, in the order in which their faults are reported."""

from __future__ import annotations

from rdrr_manifests.rules import (
    architecture,
    graph,
    hints,
    identity,
    processor,
    shards,
    tensors,
    vision,
)
from rdrr_manifests.rules.subject import Rule

STRUCTURE: tuple[Rule, ...] = (
    *identity.RULES,
    *shards.RULES,
    *tensors.RULES,
    *architecture.RULES,
    *graph.RULES,
    *hints.RULES,
    *processor.RULES,
    *vision.RULES,
)
