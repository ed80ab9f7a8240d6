"""The scale of each row of a matrix, for products in two planes of int8: see row_scales.wgsl.

Worked out once, on the device, when a matrix is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.bound_weights import WeightsRecord, bind_parts
from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.phase import Phase, Work, choice

SCALED_TYPES = ("F16", "BF16")
"""Types of single values that have products in int8."""

WORKGROUP = 64


@dataclass(frozen=True, kw_only=True)
class RowScales(WeightsRecord):
    """Parameters of row_scales.wgsl.

    Attributes:
        subgroups: Whether the maximum goes through subgroup operations.
        first: The first row of the part that is read.
    """

    shader = "row_scales"

    subgroups: bool = choice(default=False)
    first: int


def row_scales(weight: GpuWeight, scales: BufferSlice, *, label: str) -> list[Phase]:
    """Return the phases that work the scales out.

    Args:
        weight: [N, K] by row, of a type in `SCALED_TYPES`, or blocks along N.
        scales: f32 [N].
        label: Name of the matrix.

    Raises:
        FormatError: The buffer is too small.
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
