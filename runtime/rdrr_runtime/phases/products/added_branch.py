"""A branch that a product of one row adds to the residual stream before it reads the sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.phase import Record, choice


@dataclass(frozen=True, kw_only=True)
class BranchRecord(Record):
    """Parameters of snippets/added_branch.wgsl.

    Attributes:
        added: Whether a branch is added to the input first.
        added_fixed: Whether the branch is in fixed point.
        added_normed: Whether the branch is normed.
        added_scaled: Whether the sum is multiplied by a weight.
        added_stored: Whether the sum is stored.
        added_eps: Epsilon added to the mean square of the branch.
        added_offset: Number added to the gain of its norm.
        added_factor: A number that multiplies the sum beside the weight.
    """

    added: bool = choice(default=False)
    added_fixed: bool = choice(default=False)
    added_normed: bool = choice(default=False)
    added_scaled: bool = choice(default=False)
    added_stored: bool = choice(default=False)
    added_eps: float | None = None
    added_offset: float | None = None
    added_factor: float | None = None


@dataclass(frozen=True)
class BranchNorm:
    """The norm of a branch before it is added.

    Attributes:
        gain: f32 [K], the weight of the norm; then f32 [K], that of the `RowNorm` that follows the
            sum, if one does; then the weight f32 [1] that multiplies the sum, if `factor` is given.
        eps: Epsilon added to the mean square of the branch.
        offset: Number added to the weight of the norm.
        factor: A number that multiplies the sum beside the weight; None for neither.
    """

    gain: BufferSlice
    eps: float
    offset: float
    factor: float | None = None


@dataclass(frozen=True)
class AddedBranch:
    """A branch that is added to the input of a product with one row, s = x + norm(b) or x + b.

    Every workgroup of the product computes the sum for itself, and one stores it.

    Attributes:
        branch: The branch b, [K], or in fixed point as snippets/down.wgsl leaves it.
        norm: The norm of the branch; None for none.
        stream: Where the sum is stored, [K], another buffer than x and the branch; None if no later
            phase reads it.
        fixed: Whether the branch is in fixed point.
    """

    branch: BufferSlice
    norm: BranchNorm | None = None
    stream: BufferSlice | None = None
    fixed: bool = False

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which shaders declare them."""
        stored = {} if self.stream is None else {"stream": self.stream}
        gain = {} if self.norm is None else {"gain": self.norm.gain}
        return {"branch": self.branch, **gain, **stored}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of a `BranchRecord`."""
        values = {
            "added": True,
            "added_fixed": self.fixed,
            "added_normed": self.norm is not None,
            "added_stored": self.stream is not None,
        }
        if self.norm is None:
            return values
        return values | {
            "added_scaled": self.norm.factor is not None,
            "added_eps": self.norm.eps,
            "added_offset": self.norm.offset,
            "added_factor": self.norm.factor,
        }
