"""Stored blocks into the planes that products read: see repack.wgsl.

Done once, on the device, when a matrix is loaded. No code or scale changes its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, dispatch, flat_grid
from rdrr_format.block_fields import BLOCK_FIELDS

from rdrr_runtime.phases.formats import UNIT
from rdrr_runtime.phases.gpu_weight import GpuWeight, Part
from rdrr_runtime.phases.shaders import kernel

WORKGROUP = 64


@dataclass(frozen=True)
class Chunk:
    """Some stored rows of a matrix on the device.

    Attributes:
        blocks: Their bytes.
        place: Room for what a launch is told of them.
        first: The first of them in the matrix; along N a multiple of 64.
        rows: How many.
        row_blocks: Blocks of each.
    """

    blocks: BufferSlice
    place: BufferSlice
    first: int
    rows: int
    row_blocks: int


@dataclass(frozen=True)
class Repack:
    """A launch, and what must be written to the chunk's `place` before it."""

    place: npt.NDArray[np.uint32]
    launch: Dispatch


PLACE_BYTES = 40


def repack_rows(weight: GpuWeight, chunk: Chunk, label: str) -> Iterator[Repack]:
    """Launches that write a chunk of rows of blocks along K."""
    units = -(-chunk.row_blocks * weight.dtype.block_elements // UNIT)  # of a stored row
    for part in weight.parts:
        # Where blocks cross rows, a stored row is one block and no row of the matrix.
        start = part.first_row * weight.units // units
        end = -(-(part.first_row + part.rows) * weight.units // units)
        first, last = max(chunk.first, start), min(chunk.first + chunk.rows, end)
        if first < last:
            yield _launch(
                weight,
                part,
                chunk,
                (chunk.row_blocks, first - chunk.first, last - first, first - start, units, 0, 0),
                (last - first) * 2 * units,
                label,
            )


def repack_columns(weight: GpuWeight, chunk: Chunk, before: int, label: str) -> Iterator[Repack]:
    """Launches that write a chunk of rows of blocks along N.

    `before` is how many rows of earlier matrices the planes hold.
    """
    block = weight.dtype.block_elements
    halves = -(-chunk.rows // UNIT) * 2
    for part in weight.parts:
        first = max(before, part.first_row)
        outputs = min(before + weight.stride, part.first_row + part.rows) - first
        if outputs > 0:
            groups = outputs // weight.form.group + outputs // block * (weight.form.levels - 1)
            yield _launch(
                weight,
                part,
                chunk,
                (
                    chunk.row_blocks,
                    (first - before) // block,
                    outputs,
                    first - part.first_row,
                    weight.units,
                    chunk.rows,
                    chunk.first // UNIT,
                ),
                outputs * halves + groups * 8 * halves,
                label,
            )


def _launch(
    weight: GpuWeight,
    part: Part,
    chunk: Chunk,
    place: tuple[int, ...],
    threads: int,
    label: str,
) -> Repack:
    name, planes = weight.dtype.name, weight.places(part)
    what = kernel(
        "repack",
        variables={
            "F": weight.form,
            "B": BLOCK_FIELDS[name],
            "BLOCK": weight.dtype.block_elements,
            "BYTES": weight.dtype.block_bytes,
        },
        variant=f"{name.lower()}.{weight.layout.value}",
    )
    buffers = {"blocks": chunk.blocks, "planes": part.slice, "place": chunk.place}
    grid = flat_grid(-(-threads // WORKGROUP))
    begin = [planes.get(plane, 0) for plane in ("HIGH", "SCALES", "COMMON")]
    return Repack(
        np.array([*place, *begin], np.uint32), dispatch(what, buffers, grid, f"{label}.repack")
    )
