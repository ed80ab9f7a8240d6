"""The load steps of a program: how the tensors of a package reach the buffers of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rdrr_device.buffers import BufferSlice
from rdrr_format.layouts import Geometry
from rdrr_manifests.package import Package

from rdrr_runtime.compile.weights.rows import is_kept_as_stored
from rdrr_runtime.compile.weights.upload import MatrixLoad, VectorLoad, Weights
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.attention.rope_tables import attention_factor, frequencies
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.weights.packing import rows_of_chunk, stored_geometry
from rdrr_runtime.phases.weights.repack import TARGET_BYTES, RepackStep, repack
from rdrr_runtime.phases.weights.repack import Chunk as RepackChunk
from rdrr_runtime.program import steps
from rdrr_runtime.program.tables import Tables


def load_steps(plan: Plan, tables: Tables, context: int, chunk: int) -> Iterator[steps.LoadStep]:
    """Yield the steps that fill the buffers which phases read.

    Args:
        plan: The plan.
        tables: The tables of the program, which its phases have filled.
        context: The plan's context.
        chunk: Most bytes of stored rows to repack at a time.
    """
    yield from _ropes(plan, tables, context)
    yield from weight_steps(plan.weights, tables, chunk)


def weight_steps(weights: Weights, tables: Tables, chunk: int) -> Iterator[steps.LoadStep]:
    """Yield the steps that load weights which phases read."""
    yield from _vectors(weights, tables)
    for load in weights.matrix_loads:
        if not any(tables.holds(part.slice) for part in load.weight.parts):
            continue  # such as the head of a model that generates no text
        yield from _matrix(load, weights.package, tables, chunk)


def _ropes(plan: Plan, tables: Tables, context: int) -> Iterator[steps.Rope]:
    for spec, table in zip(plan.graph.ropes, plan.ropes, strict=True):
        if tables.holds(table):
            yield steps.Rope(
                kind="rope",
                range=tables.range(table),
                frequencies=tuple(frequencies(spec, context).tolist()),
                factor=float(attention_factor(spec, context)),
            )


def _vectors(weights: Weights, tables: Tables) -> Iterator[steps.Vector]:
    single = {(name,): part for name, part in weights.vectors.items()}
    for names, part in (*single.items(), *weights.concatenations.items()):
        if tables.holds(part):
            parts = tuple(_part_of(weights.vector_loads[name], weights.package) for name in names)
            yield steps.Vector(kind="vector", range=tables.range(part), parts=parts)


def _part_of(load: VectorLoad, package: Package) -> steps.VectorPart:
    scale = load.scale
    stated = None if scale is None else steps.Scale(factor=scale.factor, offset=scale.offset)
    return vector_part(package, load.use.name, load.use.shape, stated)


def vector_part(
    package: Package, name: str, shape: Sequence[int], scale: steps.Scale | None = None
) -> steps.VectorPart:
    """Return the statement of a tensor that is loaded as f32, padded to a shape."""
    dtype = package.tensor(name).dtype
    return steps.VectorPart(tensor=name, dtype=dtype, shape=tuple(shape), scale=scale)


def _matrix(
    load: MatrixLoad, package: Package, tables: Tables, chunk: int
) -> Iterator[steps.LoadStep]:
    weight, (n, k) = load.weight, load.uses[0].shape
    stored = stored_geometry(weight.dtype, load.kept.layout, (n, k))
    for number, use in enumerate(load.uses):
        dtype = package.tensor(use.name).dtype
        if not weight.form.values:
            yield _repack(load, use.name, dtype, number, stored, tables, chunk)
            continue
        decoded = None
        if not is_kept_as_stored(package, use, load.kept):
            facts = {"dtype": weight.dtype.name, "columns": stored.row_elements}
            decoded = steps.Decoded.model_validate(facts)
        yield steps.Rows(
            kind="rows",
            tensor=use.name,
            dtype=dtype,
            decoded=decoded,
            rows=stored.rows,
            row_bytes=stored.row_bytes,
            stride=16 * weight.units,
            first=number * stored.rows,
            parts=tuple(
                steps.RowsPart(range=tables.range(part.slice), first=part.first_row, rows=part.rows)
                for part in weight.parts
            ),
        )


def _repack(
    load: MatrixLoad,
    name: str,
    dtype: str,
    number: int,
    stored: Geometry,
    tables: Tables,
    most: int,
) -> steps.Repack:
    step = rows_of_chunk(load.weight, stored, most)
    return steps.Repack(
        kind="repack",
        tensor=name,
        dtype=dtype,
        rows=stored.rows,
        row_bytes=stored.row_bytes,
        chunks=tuple(
            _chunk(load, number, stored, first, min(step, stored.rows - first), tables)
            for first in range(0, stored.rows, step)
        ),
    )


def _chunk(
    load: MatrixLoad, number: int, stored: Geometry, first: int, rows: int, tables: Tables
) -> steps.Chunk:
    # The player has buffers of its own for these two.
    blocks, target = BufferSlice(None, 0, 4), BufferSlice(None, 0, TARGET_BYTES)
    chunk = RepackChunk(blocks, target, first, rows, stored.row_blocks)
    repacks = repack(load.weight, chunk, number, stored.rows, load.label)
    return steps.Chunk(first=first, rows=rows, writes=tuple(_writes(repacks, tables)))


def _writes(repacks: Iterator[RepackStep], tables: Tables) -> Iterator[steps.Write]:
    for step in repacks:
        yield steps.Write(
            kernel=tables.kernel(as_dispatch(step.phase).kernel),
            planes=tables.range(step.phase.buffers["planes"]),
            target=tuple(step.target.tolist()),
            items=step.phase.work.items,
        )
