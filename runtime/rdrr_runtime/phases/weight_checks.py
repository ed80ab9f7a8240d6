"""What phases ask of matrices and of the sizes of their items."""

from __future__ import annotations

from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.formats import HALF
from rdrr_runtime.phases.gpu_weight import GpuWeight


def readable(weight: GpuWeight) -> bool:
    """Return whether phases read a matrix: its rows of K, unlike single values stored by column."""
    return weight.layout is not Layout.COLUMN or weight.by_column


def need_rows(weight: GpuWeight, label: str) -> None:
    """Check that a matrix can be read row-major, K values to a row.

    Raises:
        FormatError: Single values stored column-major.
    """
    if not readable(weight):
        raise FormatError(
            "single values by column are read by no kernel",
            where=label,
            found=f"{weight.dtype} {weight.layout}",
            hint="transpose them when they are loaded",
        )


def unreadable_reason(weight: GpuWeight, *, int8: bool) -> str | None:
    """Return why a product that binds a whole matrix cannot read it; None if it can."""
    if not readable(weight):
        return f"its {weight.dtype} values are stored by column"
    if int8 and weight.form.values:
        return f"{weight.dtype} has no codes that could be multiplied in int8"
    if len(weight.parts) > 1:
        return f"a matrix of {weight.size} bytes exceeds what the device binds at once"
    return None


def half_units(k: int) -> int:
    """Return the half units, of 32 weights, of a row of `k` inputs."""
    return -(-k // HALF)


def power_of_two(value: int, low: int, high: int) -> int:
    """Return the smallest power of two not below `value`, kept within low..high (powers of two)."""
    return min(high, max(low, 1 << (max(1, value) - 1).bit_length()))
