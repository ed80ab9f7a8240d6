"""What a product of one row or of a small batch folds in: the ops right before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.phase import Record, choice


@dataclass(frozen=True, kw_only=True)
class InputRecord(Record):
    """Parameters of a shader that takes its input through what comes before a product.

    Attributes:
        input: `Input.kind`.
        eps: Added to the mean square, for `norm`.
        offset: Added to the gain, for `norm`.
        splits: Partial results of each head, for `combine`.
        head_dim: Width of a head, for `combine`.
    """

    input: str = choice()
    eps: float | None = None
    offset: float | None = None
    splits: int | None = None
    head_dim: int | None = None


@dataclass(frozen=True)
class RowNorm:
    """The norm before a product.

    Attributes:
        gain: f32 [K].
        eps: Added to the mean square.
        offset: Added to the gain.
    """

    kind: ClassVar[str] = "norm"

    gain: BufferSlice
    eps: float
    offset: float = 0.0

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """The operands by the names that shaders give them."""
        return {"gain": self.gain}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `InputRecord`."""
        return {"eps": self.eps, "offset": self.offset}


@dataclass(frozen=True)
class AttentionSplits:
    """The partial results of split attention that the rows are joined from.

    Attributes:
        stats: f32 [rows, heads, splits, 2] as the attention leaves it.
        splits: Partial results of each head.
        head_dim: Width of a head, a multiple of 16.
    """

    kind: ClassVar[str] = "combine"

    stats: BufferSlice
    splits: int
    head_dim: int

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """The operands by the names that shaders give them."""
        return {"stats": self.stats}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `InputRecord`."""
        return {"splits": self.splits, "head_dim": self.head_dim}


@dataclass(frozen=True)
class Input:
    """What the matrices are multiplied by.

    Attributes:
        x: [rows, K]; with `AttentionSplits` the partial results, f32
            [rows, heads, splits, head_dim].
        before: The norm that is taken first, or how partial results are joined first.
        int8: x is in int8 already, as a gated product leaves it, see `Output`.
        scales: f32 and u32 of each 16 inputs of one row in int8, else None.
        name: What it is, for the label of the phase that rounds a small batch to int8.
    """

    x: BufferSlice
    before: RowNorm | AttentionSplits | None = None
    int8: bool = False
    scales: BufferSlice | None = None
    name: str = ""

    @property
    def kind(self) -> str:
        """`plain`, `norm`, `combine` or `quantized`."""
        if self.before is not None:
            return self.before.kind
        return "quantized" if self.int8 else "plain"

    def partials(self, k: int) -> int:
        """Return how many partial results are joined for a row, of all heads together."""
        joins = self.before
        return k // joins.head_dim * joins.splits if isinstance(joins, AttentionSplits) else 0


@dataclass(frozen=True)
class Output:
    """What becomes of the products.

    Attributes:
        ys: [rows, N], one for the outputs of all matrices side by side or, of a small batch, one
            for each matrix; for `gate` one, of the gated pairs. f32 for `best`.
        kind: `store`, `add` (to y) or `gate`, and of one row `best`: the largest output too.
        bias: f32, one for each output of all matrices, or None.
        activation: `silu` or `gelu_tanh`, for `gate`.
        best: f32 and u32, one pair for each item, for `best`.
        int8: Leave the gated pairs in int8: of a small batch as `quantize_small_batch` would.
        scales: Where the scales of one row in int8 go, else None.
    """

    ys: tuple[BufferSlice, ...]
    kind: str = "store"
    bias: BufferSlice | None = None
    activation: str = ""
    best: BufferSlice | None = None
    int8: bool = False
    scales: BufferSlice | None = None
