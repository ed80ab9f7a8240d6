"""Quantization of many token rows to int8, the input of `matmul_int8`."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work

ROW_TILE = 128  # rows are padded to a multiple, so that no tile reads beyond the buffers
K_TILE = 256  # K is padded to a multiple, because blocks of any type divide it


@dataclass(frozen=True)
class QuantizedRows:
    """Token rows quantized to int8, with one scale for each 32 elements.

    Attributes:
        q: Codes in vectors of 16 int8, [k_padded / 16, rows].
        scales: f32 [k_padded / 32, rows, 2]: the scale, and the scale times the sum of the codes.
        rows: Token rows that the buffers hold, a multiple of `ROW_TILE`.
        k: Elements of a row without padding.
    """

    q: BufferSlice
    scales: BufferSlice
    rows: int
    k: int

    @property
    def k_padded(self) -> int:
        """Elements of a row, zero padding included."""
        return padded(self.k, K_TILE)


@dataclass(frozen=True, kw_only=True)
class QuantizeRows(Record):
    """Parameters of quantize_rows.wgsl.

    Attributes:
        k: Elements of a vector.
        k_padded: Elements of a vector, zero padding included; a multiple of `K_TILE`.
        rows: Vectors that the buffers hold.
        per_row: Vectors of a token row.
    """

    shader = "quantize_rows"
    trusted = True

    threads: int = 64
    k: int
    k_padded: int
    rows: int
    per_row: int


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
    ctx: OpContext, x: BufferSlice, target: QuantizedRows, *, per_row: int = 1, label: str
) -> list[Phase]:
    """Quantize token rows to int8.

    Args:
        ctx: Lowering context.
        x: f32 [rows, per_row, K].
        target: Buffers for the result, one row of it for each vector of x.
        per_row: Vectors of a token row.
        label: Name of the value, for messages and profiles.

    Raises:
        FormatError: K is not a multiple of 4, or a buffer is too small.
    """
    need_multiple(f"{label}: K", target.k, 4)
    need_floats(f"{label}: x", x, ctx.max_rows * per_row * target.k)
    for name, buffer, size in zip(
        ("q", "scales"),
        (target.q, target.scales),
        int8_sizes(max(ctx.max_rows * per_row, target.rows), target.k),
        strict=True,
    ):
        need_floats(f"{label}: {name}", buffer, size // 4)
    record = QuantizeRows(k=target.k, k_padded=target.k_padded, rows=target.rows, per_row=per_row)
    buffers = {"current": ctx.state.step, "x": x, "q": target.q, "scales": target.scales}
    work = Work(target.k_padded // K_TILE * per_row, 8)
    return [Phase(record, buffers, work, label)]
