"""Order of the prefill pass: products that share their input run side by side.

Between dispatches of which neither reads what the other writes there is no barrier, so small
products fill the device together. What is computed does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rdrr_manifests.graph import Linear, Norm, Op, Rope

from rdrr_runtime.fuse import Fusion

if TYPE_CHECKING:
    from rdrr_runtime.lower import Lowering


def projections_together(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """A norm, all linears that read it, then the head norms and ropes that stood between these."""
    norm = ops[index]
    if not isinstance(norm, Norm) or norm.groups != 1:
        return 0
    end = index + 1
    while end < len(ops) and isinstance(ops[end], Linear | Norm | Rope):
        end += 1
    run = ops[index + 1 : end]
    shared = [op for op in run if isinstance(op, Linear) and op.x == norm.out]
    others = [op for op in run if op not in shared]
    made = {op.out for op in shared}
    # Only what changes the products in place: it needs no buffers that would be taken out of turn.
    if len(shared) < 2 or not _follow(others, made):
        return 0
    for op in (norm, *shared, *others):
        low.lower(op)
    return end - index


def _follow(ops: Sequence[Op], made: set[str]) -> bool:
    """Whether each op reads a product, or what an op before it made of one."""
    known = set(made)
    for op in ops:
        if not isinstance(op, Norm | Rope) or op.x not in known:
            return False
        known.add(op.out)
    return True


PREFILL_FUSIONS: tuple[Fusion, ...] = (projections_together,)
"""Tried in order at each op of a pass of many rows."""
