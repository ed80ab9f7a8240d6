"""A norm and the linears that read it, found in a graph: what several rows run together.

How they are served is the business of `fuse_rows` and `fuse_prefill`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_manifests.graph import Linear, Norm, Op, Rope


@dataclass(frozen=True)
class NormedLinears:
    """A run of ops.

    Attributes:
        norm: The first of them.
        linears: All that read it, at least one.
        others: Norms and ropes of heads between them, each of a product or of another of these.
        end: Index of the op after the run.
    """

    norm: Norm
    linears: tuple[Linear, ...]
    others: tuple[Norm | Rope, ...]
    end: int


def find_normed_linears(ops: Sequence[Op], index: int) -> NormedLinears | None:
    """The run that begins at `index`, if one does and nothing else stands in it."""
    norm = ops[index]
    if not isinstance(norm, Norm) or norm.groups != 1:
        return None
    linears: list[Linear] = []
    others: list[Norm | Rope] = []
    end = index + 1
    while end < len(ops):
        op = ops[end]
        if isinstance(op, Linear) and op.x == norm.out:
            linears.append(op)
        elif isinstance(op, Norm | Rope):
            others.append(op)
        elif isinstance(op, Linear):
            return None  # of another input
        else:
            break
        end += 1
    known = {op.out for op in linears}
    for other in others:
        if other.x not in known:
            return None
        known.add(other.out)
    return NormedLinears(norm, tuple(linears), tuple(others), end) if linears else None
