"""Quantization of many token rows to int8, the input of `matmul_int8`.

The norm before a product, or the activation of gate and up, is computed by the same phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import Clamp

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.products.fusion import GatedPair, RowNorm

ROW_TILE = 128  # rows are padded to a multiple, so that no tile reads beyond the buffers
K_TILE = 256  # K is padded to a multiple, because blocks of any type divide it
NORM_ROWS = 4  # token rows of an item with a norm


NORM_THREADS = 256
NORM_CANDIDATES = (64, 128, 256, 512, 1024)
"""Threads of a workgroup with a norm, which share `NORM_ROWS` token rows."""


@dataclass(frozen=True)
class QuantizedRows:
    """Token rows quantized to int8, with one scale for each 32 elements or for each 16.

    Attributes:
        q: Codes in vectors of 16 int8, [k_padded / 16, rows].
        scales: f32 [k_padded / 32, rows, 2]: the scale, and the scale times the sum of the codes;
            with `halves` the scales of the first and of the last 16 elements.
        rows: Token rows that the buffers hold, a multiple of `ROW_TILE`.
        k: Elements of a row without padding.
        halves: Whether each 16 elements have a scale.
    """

    q: BufferSlice
    scales: BufferSlice
    rows: int
    k: int
    halves: bool = False

    @property
    def k_padded(self) -> int:
        """Elements of a row, zero padding included."""
        return padded(self.k, K_TILE)


@dataclass(frozen=True, kw_only=True)
class RoundedRows(Record):
    """Parameters of shaders that round the rows that a product reads.

    Attributes:
        k: Elements of a row.
        k_padded: Elements of a row, zero padding included; a multiple of `K_TILE`.
        input: The op that is computed first: `plain` for none, `norm`, `gate` or `combine`.
        joined: For `gate`: whether gate and up are the two halves of one row.
        act: For `gate`: formula of snippets/activate.wgsl.
        clamp: For `gate`: constants of the clamped SwiGLU.
        eps: For `norm`: epsilon added to the mean square.
        offset: For `norm`: number added to the gain.
    """

    trusted = True

    k: int
    k_padded: int
    input: str = choice("plain")
    joined: bool = choice(default=False)
    act: str = choice("")
    clamp: Clamp | None = None
    eps: float | None = None
    offset: float | None = None


@dataclass(frozen=True, kw_only=True)
class QuantizeRows(RoundedRows):
    """Parameters of quantize_rows.wgsl.

    Attributes:
        rows: Vectors that the buffers hold.
        halves: Whether each 16 elements have a scale, instead of each 32.
        per_row: Vectors of a token row; None for `norm`.
    """

    shader = "products/quantize_rows"

    threads: int = 64
    rows: int
    halves: bool = choice(default=False)
    per_row: int | None = None


def padded(value: int, multiple: int) -> int:
    """Return `value` rounded up to a multiple of `multiple`."""
    return -(-value // multiple) * multiple


def padded_rows(rows: int) -> int:
    """Return the rows that the buffers for `rows` token rows hold: a multiple of `ROW_TILE`."""
    return padded(rows, ROW_TILE)


def int8_sizes(rows: int, k: int) -> tuple[int, int]:
    """Return the bytes of `q` and of `scales` for `rows` token rows of `k` elements."""
    elements = padded_rows(rows) * padded(k, K_TILE)
    return elements, elements // 4


def quantize_rows(
    ctx: OpContext,
    x: BufferSlice,
    target: QuantizedRows,
    *,
    before: RowNorm | GatedPair | None = None,
    per_row: int = 1,
    label: str,
) -> list[Phase]:
    """Quantize token rows to int8.

    Args:
        ctx: Lowering context.
        x: f32 [rows, per_row, K]; with a `GatedPair` the gates.
        target: Buffers for the result, one row of it for each vector of x.
        before: The norm or the activation to compute first, for `per_row` 1; None for none.
        per_row: Vectors of a token row.
        label: Name of the value, for messages and profiles.

    Raises:
        FormatError: K is not a multiple of 4, or a buffer is too small.
    """
    need_multiple(f"{label}: K", target.k, 4)
    width = target.k * (2 if isinstance(before, GatedPair) and before.up is None else 1)
    need_floats(f"{label}: x", x, ctx.max_rows * per_row * width)
    for name, buffer, size in zip(
        ("q", "scales"),
        (target.q, target.scales),
        int8_sizes(max(ctx.max_rows * per_row, target.rows), target.k),
        strict=True,
    ):
        need_floats(f"{label}: {name}", buffer, size // 4)
    sizes: dict[str, Any] = {
        "k": target.k,
        "k_padded": target.k_padded,
        "rows": target.rows,
        "halves": target.halves,
    }
    buffers = {"current": ctx.state.step, "x": x, "q": target.q, "scales": target.scales}
    if before is not None:
        buffers |= before.buffers
        for name, operand in before.buffers.items():
            rows = ctx.max_rows if isinstance(before, GatedPair) else 1
            need_floats(f"{label}: {name}", operand, rows * target.k)
    if isinstance(before, RowNorm):
        tuning_key = ctx.workgroup_key(
            f"norm quantize_rows.norm {target.k}, {ctx.max_rows} rows",
            NORM_THREADS,
            NORM_CANDIDATES,
        )
        record = QuantizeRows(
            threads=tuning_key.used.workgroup,
            variant="norm",
            input="norm",
            **sizes,
            **before.fields,
        )
        return [Phase(record, buffers, Work(1, NORM_ROWS), label, (tuning_key,))]
    fields = {} if before is None else {"variant": before.act, "input": "gate", **before.fields}
    record = QuantizeRows(per_row=per_row, **sizes, **fields)
    work = Work(target.k_padded // K_TILE * per_row, 8)
    return [Phase(record, buffers, work, label)]
