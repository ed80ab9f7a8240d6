"""Fused matrix-vector products with one token row, the main kernel of decode.

The phase normalises its input (or combines the partial results of split attention), multiplies it
by up to four matrices, and stores the outputs, adds them to the residual stream, gates them, or
also finds the largest one. Every matrix must have a single part, and all matrices of a phase have
their blocks along the same axis. With blocks along N neither input nor output can be passed on in
int8, because the input is scaled for each group of outputs before it is quantized.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.products.down import (
    groups_of,
    outputs_at_once,
    pairs_of_item,
    results_bytes,
    scale_quads,
)
from rdrr_runtime.phases.products.down import refusal as down_refusal
from rdrr_runtime.phases.products.fusion import AttentionSplits, Input, Output
from rdrr_runtime.phases.products.matvec_columns import (
    ColumnShape,
    column_division,
    column_tuning,
    held_quads,
)
from rdrr_runtime.phases.products.matvec_record import Matvec, MatvecMatrix
from rdrr_runtime.phases.products.matvec_tuning import (
    MAX_WORKGROUPS,
    SUMMERS,
    TEAM,
    WORKGROUP,
    held_vectors,
    row_division,
    row_tuning,
    staged,
    staged_bytes,
)
from rdrr_runtime.phases.weights.binding import bind_whole
from rdrr_runtime.phases.weights.checks import unreadable_reason
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

MAX_UNQUANTIZED = 1024
"""Most outputs of unquantized matrices beside quantized ones in an int8 product, since each of
these outputs reads the whole input again."""

KEPT_TILES = 4
"""Most tiles of gated outputs that are stored together, after one wait of the workgroup."""

MAX_OUTPUT_GROUPS = 4 * MAX_WORKGROUPS
"""Most entries of `best` that a phase with the output `best` writes."""

CANDIDATE_BYTES = 8
"""Bytes of an entry of `best`: f32 value, u32 index."""


def refusal(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    *,
    int8: bool,
    partials: int = 0,
    gate: bool = False,
    down: GpuWeight | None = None,
) -> str | None:
    """Return why the kernel cannot multiply these matrices, or None if it can.

    Args:
        ctx: Lowering context.
        weights: One to four matrices [N, K] with the same K; for `gate`, gate and up, or one
            matrix with both.
        int8: Whether the input is quantized to int8. The outputs of unquantized matrices, which
            may stand beside quantized ones, read it unrounded.
        partials: Number of partial results of attention that are combined into the input.
        gate: Whether the output is activation(gate) * up.
        down: The down projection that multiplies these in the same phase; None for none.
    """
    if down is not None and (apart := down_refusal(weights, down)) is not None:
        return apart
    if ctx.max_rows != 1:
        return f"it takes 1 token row, and the pass has {ctx.max_rows}"
    if weights[0].k % 4:
        return f"K is {weights[0].k}, not a multiple of 4"
    if len({weight.by_column for weight in weights}) > 1:
        return "some of its matrices are row-major, others column-major"
    beside = int8 and not gate and _are_few(weights)
    readable = (
        unreadable_reason(weight, int8=int8 and not (beside and weight.form.values))
        for weight in weights
    )
    unreadable = next(filter(None, readable), None)
    return unreadable or _too_large(
        ctx, weights, int8=int8, partials=partials, gate=gate, down=down
    )


def _are_few(weights: tuple[GpuWeight, ...]) -> bool:
    """Return whether unquantized matrices stand beside larger quantized ones."""
    few = sum(weight.n for weight in weights if weight.form.values)
    return few <= MAX_UNQUANTIZED and any(not weight.form.values for weight in weights)


def _too_large(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    *,
    int8: bool,
    partials: int,
    gate: bool,
    down: GpuWeight | None,
) -> str | None:
    """Return what does not fit the workgroup memory or the tiles, or None if everything does."""
    k, column = weights[0].k, weights[0].by_column
    outputs = sum(weight.n for weight in weights) // (2 if gate else 1)
    shape = ColumnShape(weights, outputs, k, int8, gate, partials, down)
    rows_need = staged_bytes(k, int8=int8, partials=partials)
    needed = shape.workgroup_bytes() if column else rows_need
    if needed > ctx.workgroup_storage:
        available = f"the device's {ctx.workgroup_storage} bytes of workgroup memory"
        return f"its input of {needed} bytes exceeds {available}"
    return _unpaired(shape) if column and gate else None


def _unpaired(shape: ColumnShape) -> str | None:
    """Return why column-major gate and up matrices cannot share tiles, or None if they can.

    A tile covers the same outputs of both, which must be whole groups that share a scale.
    """
    types = {str(weight.dtype) for weight in shape.weights}
    if len(types) > 1:
        return f"gate and up are column-major and of different types, {' and '.join(sorted(types))}"
    outputs, group = shape.outputs, shape.group
    if outputs % group:
        return (
            f"gate and up have {outputs} outputs, not a multiple of the {group} that share a scale"
        )
    return None


def matvec(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    source: Input,
    output: Output,
    *,
    int8: bool = False,
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> list[Phase]:
    """Lower a fused product to one phase; `refusal` must return None for it.

    Args:
        ctx: Lowering context.
        weights: One to four matrices [N, K] with the same K; for `gate` and `down`, gate and up, or
            one matrix with both.
        source: Input of the product, with the op fused before it.
        output: Output of the product, with the op fused after it.
        int8: Whether to multiply in int8, with one scale for each 16 inputs.
        label: Name of the op, for messages and profiles.
        tuning_keys: Tuning keys that the input depends on.
    """
    down = output.down
    gate, column, k = output.is_gated, weights[0].by_column, weights[0].k
    outputs = sum(weight.n for weight in weights) // (2 if gate else 1)
    weight = None if down is None else down.weight
    bound = bind_whole((*weights, *([] if weight is None else [weight])))
    how = f"{'.column' if column else ''}{'.int8' if int8 else ''}"
    variant = f"{bound.types}.{source.title}.{output.kind}{how}"
    shape = ColumnShape(weights, outputs, k, int8, gate, source.partials(k), weight)
    if column:
        tuning_key = column_tuning(ctx, variant, shape)
        divided = column_division(ctx, tuning_key.used, shape)
    else:
        partials = source.partials(k)
        tuning_key = row_tuning(
            ctx, variant, outputs, k, int8=int8, output=output, partials=partials
        )
        combines = isinstance(source.before, AttentionSplits)
        units = max(weight.form.units(k) for weight in weights)
        divided = row_division(
            ctx,
            tuning_key.used,
            outputs,
            units,
            output=output,
            combines=combines,
            units_first=all(weight.form.units_first for weight in weights),
        )
    threads, team, rows = divided.threads, divided.team, divided.rows
    tiles = [-(-(outputs if gate else weight.n) // rows) for weight in bound.weights]
    if gate:
        tiles[1:] = [0] * len(tiles[1:])
    pairs = 0 if weight is None else pairs_of_item(weight, rows)
    items = outputs // pairs if pairs else min(sum(tiles), tuning_key.used.groups)
    held, whole = held_vectors(ctx, source, k, threads) if int8 and not column else (1, False)
    # Unquantized matrices beside quantized ones read any of the inputs again.
    whole = whole and not any(matrix.form.values for matrix in weights)
    record = Matvec(
        threads=threads,
        variant=variant,
        column=column,
        input=source.kind,
        output=output.kind,
        act=output.act,
        clamp=output.clamp,
        bias=output.bias is not None,
        int8=int8,
        int8_out=output.int8,
        kept_tiles=min(KEPT_TILES, -(-sum(tiles) // items)) if output.int8 else None,
        pairs=pairs,
        at_once=0 if weight is None else outputs_at_once(weight, threads),
        scale_quads=scale_quads(weight, threads) if column and weight else 0,
        per_team=divided.per_team,
        summers=SUMMERS if divided.spread else 0,
        crossed=divided.crossed,
        tile_groups=divided.tile_groups,
        quads=held_quads(ctx, shape, threads) if column else 0,
        held=held,
        whole=whole,
        subgroups=ctx.subgroups,
        value=ctx.values,
        t=team,
        k=k,
        k_staged=staged(k),
        rows=rows,
        stride=items,
        steps=-(-sum(tiles) // items),
        matrices=tuple(map(_matrix, bound.weights, tiles, [team] * len(tiles))),
        slot=None if weight is None else results_bytes(weight.n) // 4,
        staged=shape.staged if column and weight else None,
        groups=groups_of(weight) if column and weight else None,
        **bound.fields,
        partials=source.partials(k) or None,
        scored=output.score is not None,
        score_at=None if output.score is None else output.score.at,
        factors=output.factors is not None,
        factors_first=None if output.factors is None else output.factors.first,
        **source.fields,
    )
    buffers = {**_operands(source, output, items), **bound.buffers}
    return [Phase(record, buffers, Work(items), label, (tuning_key, *tuning_keys))]


def _operands(source: Input, output: Output, items: int) -> dict[str, BufferSlice]:
    """Return the operands other than the matrices, by the names that the shader declares."""
    operands = {
        "y": output.ys[0] if output.ys else None,
        "down": None if output.down is None else output.down.sums,
        "y_scales": output.scales,
        "bias": output.bias,
        "best": None if output.best is None else output.best.range(0, CANDIDATE_BYTES * items),
        "factors": None if output.factors is None else output.factors.values,
        "score": None if output.score is None else output.score.logits,
    }
    present = {name: operand for name, operand in operands.items() if operand is not None}
    return present | source.buffers


def _matrix(weight: GpuWeight, tiles: int, team: int) -> MatvecMatrix:
    units = weight.form.units(weight.k)
    return MatvecMatrix(weight.n, tiles, units, -(-units // team), units % team == 0)


def can_quantize_output(ctx: OpContext, outputs: int) -> bool:
    """Return whether a `gate` phase can write int8: only if each tile is whole groups of 16."""
    return outputs % 16 == 0 and (min(WORKGROUP, ctx.max_threads) // TEAM * 2) % 16 == 0
