"""Lowering of vision towers: the ops of text models, and the four that only towers have.

Merging patches changes nothing in memory: the patches of a token follow each other, so the buffer
of the patches is that of the tokens, with fewer rows. What follows has a step, a workspace and a
context of its own, and is run for as many rows as there are tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import VisionGraph, vision
from rdrr_manifests.graph.ops import Linear, Op, Residual

from rdrr_runtime.compile.lowering.builder import LoadedModel, PassBuilder
from rdrr_runtime.compile.lowering.ops import check_fields, lower_op
from rdrr_runtime.compile.lowering.values import Values
from rdrr_runtime.compile.pass_spec import HIDDEN
from rdrr_runtime.compile.patterns.layers import Body
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.rows.interpolate import interpolate
from rdrr_runtime.phases.rows.mean_rows import MeanForm, mean_rows

_OUTSIDE = "patches"
"""Name of what parts of values belong to that other memory holds."""


@dataclass(frozen=True)
class TowerInputs:
    """The buffers that the host writes for an image.

    Attributes:
        patches: Values of the patches, of the type of the activations.
        vectors: Weights of the ops that only towers have, f32, by name.
        nearest: Rows of the position embedding around each patch, u32 [patches, 4].
        factors: Their factors, f32 [patches, 4].
        of_token: The first patch of each token, and the one behind its last, u32 [tokens, 2].
    """

    patches: BufferSlice
    vectors: Mapping[str, BufferSlice]
    nearest: BufferSlice
    factors: BufferSlice
    of_token: BufferSlice


@dataclass(frozen=True)
class TowerPart:
    """Phases that are run for the same number of rows.

    Attributes:
        phases: The phases.
        is_merged: Whether there is a row for each token, rather than for each patch.
        out: Buffer of the last value; the result of a merged part.
    """

    phases: tuple[Phase, ...]
    is_merged: bool
    out: BufferSlice


def lower_tower(
    graph: VisionGraph,
    patches: tuple[LoadedModel, OpContext],
    tokens: tuple[LoadedModel, OpContext],
    cache: KvCache,
    inputs: TowerInputs,
) -> tuple[TowerPart, ...]:
    """Return the parts of a tower in the order of execution; merged ones follow `graph` likewise.

    Args:
        graph: The graph.
        patches: The model and the context of what has a row for each patch.
        tokens: The same for each token, with a workspace and a step of its own.
        cache: Keys and values of the layers, which share them.
        inputs: What the host writes.

    Raises:
        FormatError: The runtime cannot compute an op.
    """
    check_fields(_usual(graph.ops))
    readers = Counter(name for op in graph.ops for name in vision.values_of(op))
    main = _builder(*patches, cache, readers)
    # One for all merged parts, so that the results of each, which no op reads, stay in memory.
    merged = _builder(*tokens, cache, readers)
    results, index = {graph.embeddings, *graph.taps}, 0
    parts: list[TowerPart] = []
    while index < len(graph.ops):
        op = graph.ops[index]
        if not isinstance(op, vision.MergeRows):
            index += _lower(main, graph.ops, index, inputs)
            continue
        source, (width, *_) = main.values.get(op.x), main.values.live[op.x]
        parts.append(_part(main, source, is_merged=False))
        _place(merged, op.out, source, width * op.rows)
        while graph.ops[index].out not in results:
            index += _lower(merged, graph.ops, index + 1, inputs)
        main.values.mark_read(op.x)
        parts.append(_part(merged, merged.values.get(graph.ops[index].out), is_merged=True))
        index += 1
    return tuple(parts)


def _part(build: PassBuilder, out: BufferSlice, *, is_merged: bool) -> TowerPart:
    """Return the phases that a builder has emitted since the last part."""
    phases = tuple(build.phases)
    build.phases.clear()
    return TowerPart(phases, is_merged, out)


def _place(build: PassBuilder, name: str, buffer: BufferSlice, width: int) -> None:
    """State that a value lies in memory that does not belong to the workspace."""
    build.values.live[name] = (width, -1)
    build.values.parts[name] = (buffer, _OUTSIDE)


def _usual(ops: Sequence[vision.VisionOp]) -> tuple[Op, ...]:
    """Return the ops that text models have, too."""
    return tuple(op for op in ops if isinstance(op, Op))


def usual_ops(graph: VisionGraph) -> tuple[Op, ...]:
    """Return the ops of a tower that text models have, too."""
    return _usual(graph.ops)


def _builder(
    model: LoadedModel, ctx: OpContext, cache: KvCache, readers: Counter[str]
) -> PassBuilder:
    values = Values(model.workspace, Counter(readers))
    return PassBuilder(model, HIDDEN, ctx, cache, Body((), readers, {}), values)


def _lower(
    build: PassBuilder, ops: Sequence[vision.VisionOp], index: int, inputs: TowerInputs
) -> int:
    """Emit the op at an index, with the sum after a product; return the number of ops."""
    op = ops[index]
    match op:
        case vision.Patches():
            _place(build, op.out, inputs.patches, op.width)
        case vision.InterpolatedPositions():
            x, width = build.values.get(op.x), build.values.live[op.x][0]
            places = (inputs.vectors[op.weight.name], inputs.nearest, inputs.factors)
            build.emit(interpolate(build.ctx, x, *places, width=width, label="positions"))
            build.values.rename(op.x, op.out)
        case vision.MeanOfParts():
            x, y = build.values.get(op.x), build.values.allocate(op.out, op.width)
            shift = None if op.shift is None else inputs.vectors[op.shift.name]
            rows, form = inputs.of_token, MeanForm(op.width, op.factor, shift)
            build.emit(mean_rows(build.ctx, rows, x, y, form, label=op.out))
            build.values.mark_read(op.x)
        case vision.MergeRows():
            raise AssertionError("`lower_tower` begins another part here")
        case _:
            after = ops[index + 1] if index + 1 < len(ops) else None
            if isinstance(op, Linear) and isinstance(after, Residual) and after.branch == op.out:
                lower_op(build, op, after)
                return 2
            lower_op(build, op)
    return 1
