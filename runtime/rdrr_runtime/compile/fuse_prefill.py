"""Order of the prefill pass: products that share their input run side by side.

Between dispatches of which neither reads what the other writes there is no barrier, so small
products fill the device together. What is computed does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rdrr_manifests.graph import Op

from rdrr_runtime.compile.fuse import Fusion
from rdrr_runtime.compile.normed_linears import find_normed_linears

if TYPE_CHECKING:
    from rdrr_runtime.compile.lower import Lowering


def projections_together(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """A norm, all linears that read it, then the head norms and ropes that stood between these."""
    found = find_normed_linears(ops, index)
    # Only what changes the products in place: it needs no buffers that would be taken out of turn.
    if found is None or len(found.linears) < 2:
        return 0
    for op in (found.norm, *found.linears, *found.others):
        low.lower(op)
    return found.end - index


PREFILL_FUSIONS: tuple[Fusion, ...] = (projections_together,)
"""Tried in order at each op of a pass of many rows."""
