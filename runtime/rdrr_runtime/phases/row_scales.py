"""The scale of each row of a matrix whose weights are split into two int8 planes.

Products in int8 split 16-bit weights into two int8 planes with one scale for each row. The scales
are computed once, on the device, when a matrix is loaded: see row_scales.wgsl.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.bound_weights import WeightsRecord, bind_parts
from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.phase import Phase, Work, choice

SCALED_TYPES = ("F16", "BF16")
"""Unquantized types that can be multiplied in int8."""

WORKGROUP = 64


@dataclass(frozen=True, kw_only=True)
class RowScales(WeightsRecord):
    """Parameters of row_scales.wgsl.

    Attributes:
        subgroups: Whether the maximum is reduced with subgroup operations.
        first: Index of the part's first row in the matrix.
    """

    shader = "row_scales"

    subgroups: bool = choice(default=False)
    first: int


def row_scales(weight: GpuWeight, scales: BufferSlice, *, label: str) -> list[Phase]:
    """Compute the scale of each row, one phase for each part of the matrix.

    Args:
        weight: [N, K], row-major of a type in `SCALED_TYPES`.
        scales: f32 [N], the result.
        label: Name of the matrix.

    Raises:
        FormatError: The buffer of the scales is too small.
    """
    need_floats(f"{label}: row scales", scales, weight.n)
    made = []
    for bound in bind_parts(weight):
        part = bound.parts[0]
        record = RowScales(
            threads=WORKGROUP, variant=bound.types, first=part.first_row, **bound.fields
        )
        buffers = {"scales": scales, **bound.buffers}
        made.append(Phase(record, buffers, Work(weight.outputs(part)), f"{label}.scales"))
    return made
