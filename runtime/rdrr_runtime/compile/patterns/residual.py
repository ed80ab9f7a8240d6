"""The end of a block, where its output joins the residual stream, and what reads the sum."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.ops import Linear, Norm, Residual, Scale

from rdrr_runtime.compile.patterns.layers import Body, match_branch


@dataclass(frozen=True)
class StreamSum:
    """The end of a block: the norm of its output, the residual, and maybe a scale of the sum.

    Attributes:
        norm: The norm; None for none.
        residual: The residual that adds the output to the stream.
        scale: The multiplication of the sum by one weight; None for none.
    """

    norm: Norm | None
    residual: Residual
    scale: Scale | None = None

    @property
    def branch(self) -> str:
        """Name of the output of the block, before the norm."""
        return self.residual.branch if self.norm is None else self.norm.x

    @property
    def out(self) -> str:
        """Name of the sum."""
        return self.residual.out if self.scale is None else self.scale.out

    @property
    def count(self) -> int:
        """Number of ops."""
        return 1 + (self.norm is not None) + (self.scale is not None)


def match_normed_sum(body: Body, index: int) -> StreamSum | None:
    """Match a plain norm of rows, the residual after it, and a scale of the sum if one follows."""
    branch, scale = match_branch(body, index), body.at(index + 2)
    if branch is None or branch.residual is None or not isinstance(branch.op, Norm):
        return None
    norm, residual = branch.op, branch.residual
    if not norm.is_plain or norm.groups != 1:
        return None
    if not isinstance(scale, Scale) or scale.weight is None or scale.weight.shape != (1,):
        return StreamSum(norm, residual)
    if scale.bias is not None:
        return StreamSum(norm, residual)
    alone = scale.x == residual.out and body.readers[scale.x] == 1
    return StreamSum(norm, residual, scale if alone else None)


def is_read_next(body: Body, index: int, stream_sum: StreamSum) -> bool:
    """Return whether the op after a sum is a norm or a linear that reads it.

    Args:
        body: The ops before the final norm, which reads the last sum.
        index: Index of the first op of the sum.
        stream_sum: The sum.
    """
    following = body.at(index + stream_sum.count)
    if isinstance(following, Norm):
        return following.x == stream_sum.out and following.groups == 1
    return following is None or (isinstance(following, Linear) and following.x == stream_sum.out)
