"""Matrix times one token row, with what comes before and after folded in: the phase of decoding.

It takes the input through its norm (or joins the partial results of split attention), multiplies it
by up to three matrices, and stores, adds to the residual stream, gates, or finds the largest
output. Only matrices in one part; blocks along N and along K in phases of their own, and of blocks
along N no hand-over in int8, because the input is scaled anew for each group of outputs.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey

from rdrr_runtime.phases.bound_weights import bind_whole
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.fusion import Input, Output
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.matvec_record import Matvec, MatvecMatrix
from rdrr_runtime.phases.matvec_tuning import (
    MAX_WORKGROUPS,
    TEAM,
    WORKGROUP,
    column_staged_bytes,
    column_tuning,
    division,
    group_of,
    row_tuning,
    staged,
    staged_bytes,
)
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.weight_checks import unreadable_reason

MAX_OUTPUT_GROUPS = 4 * MAX_WORKGROUPS
"""Entries of `best` that a `best` phase may write."""

CANDIDATE_BYTES = 8
"""Bytes of one of them."""


def refusal(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    *,
    int8: bool,
    partials: int = 0,
    gate: bool = False,
) -> str | None:
    """Return what stands in the way of a product with these matrices; None if nothing does.

    Args:
        ctx: Where it is lowered to.
        weights: One to three matrices [N, K] of one K; for `gate`, gate and up, or both in one.
        int8: Whether the input is rounded to int8.
        partials: Partial results of attention that are joined on the way in.
        gate: Whether gate and up are joined by an activation.
    """
    if ctx.max_rows != 1:
        return f"it takes 1 token row, and the pass has {ctx.max_rows}"
    if weights[0].k % 4:
        return f"K is {weights[0].k}, no multiple of 4"
    if len({one.by_column for one in weights}) > 1:
        return "some of its matrices are row-major, others column-major"
    found = next(filter(None, (unreadable_reason(one, int8=int8) for one in weights)), None)
    return found or _too_large(ctx, weights, int8=int8, partials=partials, gate=gate)


def _too_large(
    ctx: OpContext, weights: tuple[GpuWeight, ...], *, int8: bool, partials: int, gate: bool
) -> str | None:
    """Return what does not fit the tiles or the memory of a workgroup; None if all does."""
    k, column = weights[0].k, weights[0].by_column
    if column:
        needed = column_staged_bytes(k, int8=int8, gate=gate, partials=partials)
    else:
        needed = staged_bytes(k, int8=int8, partials=partials)
    if needed > ctx.workgroup_storage:
        room = f"the device's {ctx.workgroup_storage} bytes of workgroup memory"
        return f"its input of {needed} bytes exceeds {room}"
    return _unpaired(weights) if column and gate else None


def _unpaired(weights: tuple[GpuWeight, ...]) -> str | None:
    """Return why gate and up of column matrices have no whole groups of the same outputs."""
    types = {str(one.dtype) for one in weights}
    if len(types) > 1:
        return f"gate and up are column-major and of different types, {' and '.join(sorted(types))}"
    outputs, group = sum(one.n for one in weights) // 2, group_of(weights)
    if outputs % group:
        return f"gate and up have {outputs} outputs, no multiple of the {group} that share a scale"
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
    """One product, which `refusal` must not refuse.

    Args:
        ctx: Where it is lowered to.
        weights: One to three matrices [N, K] of one K; for `gate`, gate and up, or both in one.
        source: What they are multiplied by.
        output: What becomes of the products.
        int8: Multiply in int8, with one scale for 16 inputs.
        label: What the op is.
        tuning_keys: What the input depends on.
    """
    gate, column, k = output.kind == "gate", weights[0].by_column, weights[0].k
    outputs = sum(one.n for one in weights) // (2 if gate else 1)
    bound = bind_whole(weights)
    how = f"{'.column' if column else ''}{'.int8' if int8 else ''}"
    variant = f"{bound.types}.{source.kind}.{output.kind}{how}"
    if column:
        tuning_key = column_tuning(ctx, variant, outputs, k)
    else:
        handed, partials = output.int8, source.partials(k)
        tuning_key = row_tuning(
            ctx, variant, outputs, k, int8=int8, int8_out=handed, partials=partials
        )
    threads, team, per_team = division(ctx, tuning_key.used, weights, outputs, gate=gate)
    rows = threads // team * per_team
    tiles = [-(-(outputs if gate else one.n) // rows) for one in weights]
    if gate:
        tiles[1:] = [0] * len(tiles[1:])
    items = min(sum(tiles), tuning_key.used.groups)
    record = Matvec(
        threads=threads,
        variant=variant,
        column=column,
        input=source.kind,
        output=output.kind,
        act=output.activation,
        bias=output.bias is not None,
        int8=int8,
        int8_out=output.int8,
        per_team=per_team,
        subgroups=ctx.subgroups,
        value=ctx.values,
        t=team,
        k=k,
        k_staged=staged(k),
        rows=rows,
        stride=items,
        steps=-(-sum(tiles) // items),
        matrices=tuple(map(_matrix, weights, tiles, [team] * len(weights))),
        **bound.fields,
        partials=source.partials(k) or None,
        **(source.before.fields if source.before else {}),
    )
    buffers = {**_operands(source, output), **bound.buffers}
    return [Phase(record, buffers, Work(items), label, (tuning_key, *tuning_keys))]


def _operands(source: Input, output: Output) -> dict[str, BufferSlice]:
    """Return the operands beside the matrices by the names that the shader gives them."""
    operands = {
        "x": source.x,
        "x_scales": source.scales,
        "y": output.ys[0],
        "y_scales": output.scales,
        "bias": output.bias,
        "best": output.best,
    }
    found = {name: one for name, one in operands.items() if one is not None}
    return found | (source.before.buffers if source.before else {})


def _matrix(weight: GpuWeight, tiles: int, team: int) -> MatvecMatrix:
    units = weight.form.units(weight.k)
    return MatvecMatrix(weight.n, tiles, units, -(-units // team), units % team == 0)


def can_quantize_output(ctx: OpContext, outputs: int) -> bool:
    """Return whether a `gate` phase can leave its outputs in int8: whole groups of 16 a step."""
    return outputs % 16 == 0 and (min(WORKGROUP, ctx.max_threads) // TEAM * 2) % 16 == 0
