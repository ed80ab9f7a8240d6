"""Invariants of the values of any graph."""

from __future__ import annotations

from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import values_read


def unread_values(graph: Graph) -> set[str]:
    """Return the values that no op reads; check that each is written once and before it is read."""
    written: set[str] = set()
    read: set[str] = set()
    for op in graph.ops:
        assert set(values_read(op)) <= written, op
        assert op.out not in written, op
        written.add(op.out)
        read.update(values_read(op))
    return written - read
