"""The scale of each row of a matrix, for products in two planes of int8: see row_scales.wgsl.

Worked out once, on the device, when a matrix is loaded.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, dispatch, flat_grid

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.shaders import kernel

SCALED_TYPES = ("F16", "BF16")
"""Types of single values that have products in int8."""

WORKGROUP = 64


def row_scales(weight: GpuWeight, scales: BufferSlice, *, label: str) -> list[Dispatch]:
    """Launches that work the scales out.

    Args:
        weight: [N, K] by row, of a type in `SCALED_TYPES`, or blocks along N.
        scales: f32 [N].
        label: Name of the matrix.

    Raises:
        FormatError: The buffer is too small.
    """
    need_floats(f"{label}: row scales", scales, weight.n)
    name = weight.dtype.name.lower()
    made = []
    for part in weight.parts:
        what = kernel(
            "row_scales",
            variables={"FORMATS": (weight.form,), "SUBGROUPS": False},
            constants={
                "WG": WORKGROUP,
                "ROWS": weight.outputs(part),
                "FIRST": part.first_row,
                **weight.places(part, 0),
            },
            variant=name,
        )
        buffers = {"weight0": part.slice, "scales": scales}
        made.append(dispatch(what, buffers, flat_grid(weight.outputs(part)), f"{label}.scales"))
    return made
