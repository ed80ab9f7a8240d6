"""Token rows in int8, for the products of many rows (`matmul_int8`)."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work

ROW_TILE = 128  # rows of an QuantizedRows come in multiples, so that no tile reads beyond them
K_TILE = 256  # inputs come in multiples: no block of any type reaches further


@dataclass(frozen=True)
class QuantizedRows:
    """Token rows in int8, 32 elements to a scale.

    Attributes:
        q: int8 by 16 [k_padded / 16, rows].
        scales: f32 [k_padded / 32, rows, 2]: scale, and scale times the sum of q.
        rows: Token rows that the buffers hold, a multiple of `ROW_TILE`.
        k: Elements of a row that carry meaning.
    """

    q: BufferSlice
    scales: BufferSlice
    rows: int
    k: int

    @property
    def k_padded(self) -> int:
        """Elements of a row with the zeros after them."""
        return padded(self.k, K_TILE)


@dataclass(frozen=True, kw_only=True)
class QuantizeRows(Record):
    """Parameters of quantize_rows.wgsl.

    Attributes:
        k: Elements of a row.
        k_padded: The same with the zeros after them, a multiple of `K_TILE`.
        rows: Rows that the buffers hold.
        per_row: Rows for each token row.
    """

    shader = "quantize_rows"
    trusted = True

    threads: int = 64
    k: int
    k_padded: int
    rows: int
    per_row: int


def padded(value: int, multiple: int) -> int:
    """The smallest multiple not below `value`."""
    return -(-value // multiple) * multiple


def padded_rows(rows: int) -> int:
    """Rows that the buffers for `rows` token rows hold."""
    return padded(rows, ROW_TILE)


def int8_sizes(rows: int, k: int) -> tuple[int, int]:
    """Bytes of `q` and of `scales` for `rows` token rows of `k` elements."""
    elements = padded_rows(rows) * padded(k, K_TILE)
    return elements, elements // 4


def quantize_rows(
    ctx: OpContext, x: BufferSlice, target: QuantizedRows, *, per_row: int = 1, label: str
) -> list[Phase]:
    """Token rows as int8.

    Args:
        ctx: Where it is lowered to.
        x: f32 [rows, per_row, K].
        target: Where to put them.
        per_row: Rows of the target for each token row.
        label: What they are the input of.

    Raises:
        FormatError: K is no multiple of 4, or a buffer is too small.
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
