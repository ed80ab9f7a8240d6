"""Repacking of stored blocks into the planes that the products read: see repack.wgsl.

Repacking runs once, on the device, when a matrix is loaded. It is lossless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Kernel
from rdrr_format.block_fields import BLOCK_FIELDS, BlockFields

from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.weights.formats import UNIT, GpuFormat
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, Part

WORKGROUP = 64


@dataclass(frozen=True)
class Chunk:
    """A chunk of the stored rows of a matrix, on the device.

    Attributes:
        blocks: Bytes of the rows.
        target: Buffer of `TARGET_BYTES` that tells the phase where to write them.
        first: Index of the first row in the matrix; a multiple of 64 for blocks along N.
        rows: Number of rows.
        row_blocks: Blocks of a row.
    """

    blocks: BufferSlice
    target: BufferSlice
    first: int
    rows: int
    row_blocks: int


@dataclass(frozen=True)
class RepackStep:
    """A phase, and the words to write to the chunk's `target` before it runs."""

    target: npt.NDArray[np.uint32]
    phase: Phase


TARGET_BYTES = 44


@dataclass(frozen=True, kw_only=True)
class Repack(Record):
    """Parameters of repack.wgsl.

    Attributes:
        form: Memory layout of the matrix on the GPU.
        stored: Byte offsets of the fields of a stored block.
        block: Weights of a block.
        block_bytes: Bytes of a block.
    """

    shader = "weights/repack"

    threads: int = WORKGROUP
    form: GpuFormat = choice()
    stored: BlockFields = choice()
    block: int = choice()
    block_bytes: int = choice()


def repack(
    weight: GpuWeight, chunk: Chunk, number: int, rows: int, label: str
) -> Iterator[RepackStep]:
    """Yield the steps that repack a chunk of stored rows, one for each part.

    Args:
        weight: The matrix, or the stack of matrices.
        chunk: The stored rows; `first` is the index in their tensor.
        number: Number of the tensor in the stack.
        rows: Stored rows of each tensor.
        label: Name of the tensor.
    """
    if weight.by_column:
        return repack_columns(weight, chunk, number * weight.stride, label)
    return repack_rows(weight, replace(chunk, first=number * rows + chunk.first), label)


def repack_rows(weight: GpuWeight, chunk: Chunk, label: str) -> Iterator[RepackStep]:
    """Yield the steps that repack a chunk of rows of blocks along K, one for each part."""
    units = -(-chunk.row_blocks * weight.dtype.block_elements // UNIT)  # units of a stored row
    for part in weight.parts:
        # If flat blocks cross rows, a stored row is one block instead of a row of the matrix.
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
    """Yield the steps that repack a chunk of rows of blocks along N, one for each part.

    Args:
        weight: The matrix, or the stack of matrices.
        chunk: The stored rows; each holds the weights of one input for all outputs.
        before: Rows of the stack before this matrix.
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


def repack_kernel(weight: GpuWeight) -> Kernel:
    """Return the kernel that repacks the chunks of a matrix, so that it can be compiled ahead.

    A chunk of more than 65,535 workgroups has a kernel of its own.
    """
    buffers = dict.fromkeys(("blocks", "planes", "chunk"), weight.parts[0].slice)
    return as_dispatch(Phase(_record(weight), buffers, Work(), "repack")).kernel


def _record(weight: GpuWeight) -> Repack:
    form, stored = weight.form, BLOCK_FIELDS[weight.dtype.name]
    if form.column and form.minimum:
        stored = replace(stored, zero_point=1 << (form.bits - 1))
    return Repack(
        variant=f"{weight.dtype.name.lower()}.{weight.layout.value}",
        form=form,
        stored=stored,
        block=weight.dtype.block_elements,
        block_bytes=weight.dtype.block_bytes,
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
    record = _record(weight)
    buffers = {"blocks": chunk.blocks, "planes": part.slice, "chunk": chunk.target}
    begin = [offset or 0 for offset in (planes.high, planes.scales, planes.super_scales)]
    phase = Phase(record, buffers, Work(-(-threads // WORKGROUP)), f"{label}.repack")
    return RepackStep(np.array([*target, part.rows, *begin], np.uint32), phase)
