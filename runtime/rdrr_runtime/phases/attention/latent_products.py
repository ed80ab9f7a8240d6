"""The products of latent attention: of queries before it, and of the sums of latents after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_format.errors import DeviceError, FormatError

from rdrr_runtime.phases.attention.latent import LatentSpec
from rdrr_runtime.phases.context import OpContext, need_floats, power_of_two
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.products.fusion import AttentionSplits, Input
from rdrr_runtime.phases.weights.binding import BoundWeights, WeightsRecord, bind_whole
from rdrr_runtime.phases.weights.checks import half_units, unreadable_reason
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

QUERY_THREADS = 128
VALUE_THREADS = 256
ROWS = 4
"""Token rows that share the weights they are multiplied by, where a pass has several."""

ONE_ROW_UNITS = 2
"""Half units of weights of an item of `latent_queries` for one row; fewer give more items."""

ROW_UNITS = 16
"""Likewise for several rows."""


@dataclass(frozen=True, kw_only=True)
class HeadProducts(WeightsRecord):
    """Parameters of both products.

    Attributes:
        rows: Token rows of an item, at most 4.
        heads: Query heads.
        key_dim: Rows of the matrix of a head that make keys.
        value_dim: Rows of the matrix of a head that make values.
        latent: Elements of a latent.
        units: Half units (32 weights) of a row.
    """

    trusted = True

    value: str = choice()
    rows: int = choice()
    heads: int
    key_dim: int
    value_dim: int
    latent: int
    units: int


@dataclass(frozen=True, kw_only=True)
class LatentQueries(HeadProducts):
    """Parameters of latent_queries.wgsl.

    Attributes:
        interleaved: Whether neighbouring elements form a pair.
        pairs: Rotated pairs of a head.
    """

    shader = "attention/latent_queries"

    interleaved: bool = choice()
    pairs: int
    units_each: int


@dataclass(frozen=True, kw_only=True)
class LatentValues(HeadProducts):
    """Parameters of latent_values.wgsl.

    Attributes:
        combine: Whether the input is combined from the partial results of splits.
        splits: With `combine`: number of splits of the keys.
    """

    shader = "attention/latent_values"

    combine: bool = choice()
    lanes: int = choice(default=1)
    splits: int | None = None


def latent_queries(
    ctx: OpContext,
    q: BufferSlice,
    up: GpuWeight,
    queries: BufferSlice,
    spec: LatentSpec,
    table: BufferSlice,
    *,
    label: str,
) -> list[Phase]:
    """Turn queries into those that are multiplied by latents, and rotate their last part.

    Args:
        ctx: Lowering context.
        q: [rows, heads, key_dim + rope_dim].
        up: [heads * (key_dim + value_dim), latent] in any format except column-major values.
        queries: The result, [rows, heads, latent + rope_dim].
        spec: Sizes.
        table: Cosines and sines, f32 [context, rope_dim / 2, 2].
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernels do not support the matrix, or a buffer is too small.
    """
    rows, count = ctx.max_rows, spec.heads
    ctx.need_values(f"{label}: q", q, rows * count * (spec.key_dim + spec.rope_dim))
    ctx.need_values(f"{label}: queries", queries, rows * count * spec.query_dim)
    bound = _bind(up, spec, label)
    units = half_units(spec.latent)
    each = power_of_two(units, 1, ONE_ROW_UNITS if rows == 1 else ROW_UNITS)
    record = LatentQueries(
        threads=QUERY_THREADS,
        rows=min(rows, ROWS),
        **_product_fields(ctx, bound, spec),
        interleaved=spec.interleaved,
        pairs=spec.rope_dim // 2,
        units_each=each,
    )
    buffers = {"current": ctx.state.step, "table": table, "q": q, "queries": queries}
    work = Work(count * -(-units // each), record.rows)
    return [Phase(record, {**buffers, **bound.buffers}, work, label)]


def latent_values(
    ctx: OpContext,
    source: Input,
    up: GpuWeight,
    out: BufferSlice,
    spec: LatentSpec,
    *,
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> list[Phase]:
    """Return the values of sums of latents.

    Args:
        ctx: Lowering context.
        source: The sums, [rows, heads, latent], or the partial results of `latent_decode` with
            `AttentionSplits` before them.
        up: [heads * (key_dim + value_dim), latent] in any format except column-major values.
        out: The result, [rows, heads, value_dim].
        spec: Sizes.
        label: Name of the op, for messages and profiles.
        tuning_keys: Tuning keys that the splits depend on.

    Raises:
        FormatError: The kernels do not support the matrix, or a buffer is too small.
        DeviceError: The sums of a row do not fit workgroup memory.
    """
    rows, splits = ctx.max_rows, source.before
    assert splits is None or isinstance(splits, AttentionSplits), "only attention comes before"
    ctx.need_values(f"{label}: out", out, rows * spec.heads * spec.value_dim)
    elements = rows * spec.heads * spec.latent
    if splits is None:
        ctx.need_values(f"{label}: latents", source.x, elements)
        operands = {"latents": source.x}
    else:
        need_floats(f"{label}: sums", source.x, elements * splits.splits)
        need_floats(f"{label}: stats", splits.stats, 2 * rows * spec.heads * splits.splits)
        operands = {"sums": source.x, **splits.buffers}
    bound, count = _bind(up, spec, label), 0 if splits is None else splits.splits
    threads = min(VALUE_THREADS, ctx.max_threads)
    record = LatentValues(
        threads=threads,
        rows=_value_rows(ctx, spec, threads, count, label),
        combine=splits is not None,
        lanes=2 if splits is not None and 2 * spec.latent <= 4 * threads else 1,
        splits=count or None,
        **_product_fields(ctx, bound, spec),
    )
    items = spec.heads * -(-spec.value_dim // (threads // record.units))
    buffers = {"current": ctx.state.step, **operands, "out": out, **bound.buffers}
    return [Phase(record, buffers, Work(items, record.rows), label, tuning_keys)]


def _value_rows(ctx: OpContext, spec: LatentSpec, threads: int, splits: int, label: str) -> int:
    """Return the token rows of an item of `latent_values` whose inputs fit workgroup memory.

    Raises:
        DeviceError: Not even those of one row fit.
    """
    # Of each row 9 vectors of 4 for a half unit (8 hold its 32 inputs); of the item the sums of all
    # threads, a vector each, and of each split its maximum and the two factors made of it.
    each, rest = 144 * half_units(spec.latent), 16 * threads + 12 * splits
    fitting = (ctx.workgroup_storage - rest) // each
    if fitting < 1:
        raise DeviceError(
            "the values of latent attention need more workgroup memory than the device has",
            where=label,
            expected=f"at least {each + rest} bytes",
            found=ctx.workgroup_storage,
        )
    return min(ROWS, ctx.max_rows, fitting)


def _bind(up: GpuWeight, spec: LatentSpec, label: str) -> BoundWeights:
    """Bind the matrices of all heads.

    Raises:
        FormatError: The kernels do not support them.
    """
    obstacle = unreadable_reason(up, int8=False)
    if obstacle is None and half_units(spec.latent) > QUERY_THREADS:
        obstacle = f"a latent of {spec.latent} elements is too wide for the kernel"
    if obstacle is not None:
        raise FormatError(
            "no kernel reads the matrices of latent attention", where=label, found=obstacle
        )
    return bind_whole((up,))


def _product_fields(ctx: OpContext, bound: BoundWeights, spec: LatentSpec) -> dict[str, Any]:
    return {
        **bound.fields,
        "variant": bound.types,
        "value": ctx.values,
        "heads": spec.heads,
        "key_dim": spec.key_dim,
        "value_dim": spec.value_dim,
        "latent": spec.latent,
        "units": half_units(spec.latent),
    }
