"""Stored blocks into the planes that products read: see repack.wgsl.

Done once, on the device, when a matrix is loaded. No code or scale changes its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_format.block_fields import BLOCK_FIELDS, BlockFields

from rdrr_runtime.phases.formats import UNIT, GpuFormat
from rdrr_runtime.phases.gpu_weight import GpuWeight, Part
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

WORKGROUP = 64


@dataclass(frozen=True)
class Chunk:
    """Some stored rows of a matrix on the device.

    Attributes:
        blocks: Their bytes.
        target: Buffer of `TARGET_BYTES` that says where a phase writes them.
        first: The first of them in the matrix; along N a multiple of 64.
        rows: How many.
        row_blocks: Blocks of each.
    """

    blocks: BufferSlice
    target: BufferSlice
    first: int
    rows: int
    row_blocks: int


@dataclass(frozen=True)
class RepackStep:
    """A phase, and what must be written to the chunk's `target` before it runs."""

    target: npt.NDArray[np.uint32]
    phase: Phase


TARGET_BYTES = 40


@dataclass(frozen=True, kw_only=True)
class Repack(Record):
    """Parameters of repack.wgsl.

    Attributes:
        form: How the matrix lies in GPU memory.
        stored: How the fields of a stored block lie.
        block: Weights of a block.
        block_bytes: Its bytes.
    """

    shader = "repack"

    threads: int = WORKGROUP
    form: GpuFormat = choice()
    stored: BlockFields = choice()
    block: int = choice()
    block_bytes: int = choice()


def repack_rows(weight: GpuWeight, chunk: Chunk, label: str) -> Iterator[RepackStep]:
    """Yield what writes a chunk of rows of blocks along K."""
    units = -(-chunk.row_blocks * weight.dtype.block_elements // UNIT)  # of a stored row
    for part in weight.parts:
        # Where blocks cross rows, a stored row is one block and no row of the matrix.
        start = part.first_row * weight.units // units
        end = -(-(part.first_row + part.rows) * weight.units // units)
        first, last = max(chunk.first, start), min(chunk.first + chunk.rows, end)
        if first < last:
            yield _step(
                weight,
                part,
                chunk,
                (chunk.row_blocks, first - chunk.first, last - first, first - start, units, 0, 0),
                (last - first) * 2 * units,
                label,
            )


def repack_columns(
    weight: GpuWeight, chunk: Chunk, before: int, label: str
) -> Iterator[RepackStep]:
    """Yield what writes a chunk of rows of blocks along N.

    Args:
        weight: The matrix.
        chunk: The stored rows, each one input of all outputs.
        before: Rows of earlier matrices that the planes hold.
        label: Name of the tensor.
    """
    block = weight.dtype.block_elements
    halves = -(-chunk.rows // UNIT) * 2
    for part in weight.parts:
        first = max(before, part.first_row)
        outputs = min(before + weight.stride, part.first_row + part.rows) - first
        if outputs > 0:
            groups = outputs // weight.form.group + outputs // block * (weight.form.levels - 1)
            yield _step(
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


def _step(
    weight: GpuWeight,
    part: Part,
    chunk: Chunk,
    target: tuple[int, ...],
    threads: int,
    label: str,
) -> RepackStep:
    planes = weight.plane_offsets(part)
    record = Repack(
        variant=f"{weight.dtype.name.lower()}.{weight.layout.value}",
        form=weight.form,
        stored=BLOCK_FIELDS[weight.dtype.name],
        block=weight.dtype.block_elements,
        block_bytes=weight.dtype.block_bytes,
    )
    buffers = {"blocks": chunk.blocks, "planes": part.slice, "chunk": chunk.target}
    begin = [one or 0 for one in (planes.high, planes.scales, planes.super_scales)]
    phase = Phase(record, buffers, Work(-(-threads // WORKGROUP)), f"{label}.repack")
    return RepackStep(np.array([*target, *begin], np.uint32), phase)
