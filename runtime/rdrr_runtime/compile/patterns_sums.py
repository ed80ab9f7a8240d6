"""The pattern of the end of a block whose output is normed before it joins the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.ops import Linear, Norm, Residual, Scale

from rdrr_runtime.compile.patterns import Body, match_branch


@dataclass(frozen=True)
class NormedSum:
    """The end of a block: the norm of its output, the residual, and maybe a scale of the sum.

    Attributes:
        norm: The norm.
        residual: The residual that adds its output to the stream.
        scale: The multiplication of the sum by one weight; None for none.
    """

    norm: Norm
    residual: Residual
    scale: Scale | None = None

    @property
    def out(self) -> str:
        """Name of the sum."""
        return self.residual.out if self.scale is None else self.scale.out

    @property
    def count(self) -> int:
        """Number of ops."""
        return 2 if self.scale is None else 3


def match_normed_sum(body: Body, index: int) -> NormedSum | None:
    """Match a plain norm of rows, the residual after it, and a scale of the sum if one follows."""
    branch, scale = match_branch(body, index), body.at(index + 2)
    if branch is None or branch.residual is None or not isinstance(branch.op, Norm):
        return None
    norm, residual = branch.op, branch.residual
    if not norm.is_plain or norm.groups != 1:
        return None
    if not isinstance(scale, Scale) or scale.weight is None or scale.weight.shape != (1,):
        return NormedSum(norm, residual)
    alone = scale.x == residual.out and body.readers[scale.x] == 1
    return NormedSum(norm, residual, scale if alone else None)


def is_read_next(body: Body, index: int, found: NormedSum) -> bool:
    """Return whether the op after a sum is a norm or a linear that reads it.

    Args:
        body: The ops before the final norm, which reads the last sum.
        index: Index of the first op of the sum.
        found: The sum.
    """
    following = body.at(index + found.count)
    if isinstance(following, Norm):
        return following.x == found.out and following.groups == 1
    return following is None or (isinstance(following, Linear) and following.x == found.out)
