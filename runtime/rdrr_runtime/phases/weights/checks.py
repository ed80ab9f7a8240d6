"""Checks of whether kernels can read a matrix, and the number of its half units."""

from __future__ import annotations

from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.weights.formats import HALF
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


def readable(weight: GpuWeight) -> bool:
    """Return whether kernels can read a matrix: not if it is unquantized and column-major."""
    return weight.layout is not Layout.COLUMN or weight.by_column


def need_rows(weight: GpuWeight, label: str) -> None:
    """Check that kernels can read a matrix.

    Raises:
        FormatError: The matrix holds unquantized values in column-major order.
    """
    if not readable(weight):
        raise FormatError(
            "no kernel reads unquantized weights in column-major order",
            where=label,
            found=f"{weight.dtype} {weight.layout}",
            hint="transpose them when they are loaded",
        )


def unreadable_reason(weight: GpuWeight, *, int8: bool, in_parts: bool = False) -> str | None:
    """Return why a product cannot read a matrix, or None if it can.

    Args:
        weight: The matrix.
        int8: Whether the product multiplies in int8.
        in_parts: Whether the product has a phase for each part, instead of binding whole matrices.
    """
    if not readable(weight):
        return f"its {weight.dtype} values are stored column-major"
    if int8 and weight.form.values:
        return f"{weight.dtype} has no codes that could be multiplied in int8"
    if len(weight.parts) > 1 and not in_parts:
        return f"a matrix of {weight.size} bytes exceeds what the device binds at once"
    return None


def half_units(k: int) -> int:
    """Return the number of half units (32 weights) in a row of `k` inputs."""
    return -(-k // HALF)
