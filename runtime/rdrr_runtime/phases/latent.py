"""Multi-head latent attention, which reads compressed keys and values (arXiv 2405.04434).

The keys and values of a head are products of a matrix with the latent of a token. Instead of
expanding them for all tokens, the matrices are applied to the query and to the sum of the latents:

    latent_store      add the normed latent and the rotated key of a row to the cache
    latent_queries    queries that are multiplied by latents; their rotated part
    latent_attention  softmax, and the sum of the latents that it weighs
    latent_values     values that the sums stand for
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_format.errors import DeviceError, FormatError

from rdrr_runtime.phases.attention import AttentionCombine, partial_buffers
from rdrr_runtime.phases.attention_spec import AttentionRecord, AttentionSpec
from rdrr_runtime.phases.bound_weights import BoundWeights, WeightsRecord, bind_whole
from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.kv_cache import CacheRecord, KvSpec, LayerCache
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.weight_checks import half_units, power_of_two, unreadable_reason

THREADS = 128
ROWS = 4
"""Token rows that share the weights they are multiplied by, where a pass has several."""

ONE_ROW_UNITS = 4
"""Half units of weights of an item of `latent_queries` for one row; fewer give more items."""


@dataclass(frozen=True)
class LatentSpec:
    """What the latent attention of a layer computes.

    Attributes:
        heads: Query heads.
        key_dim: Elements of a head's key that are made of the latent.
        value_dim: Elements of a head's value.
        cache: Sizes and type of the caches; the first holds latents, the second rotated keys.
        interleaved: Whether neighbouring elements form a rotated pair.
        scale: Factor on the scores.
    """

    heads: int
    key_dim: int
    value_dim: int
    cache: KvSpec
    interleaved: bool
    scale: float

    @property
    def latent(self) -> int:
        """Elements of a latent."""
        return self.cache.head_dim

    @property
    def rope_dim(self) -> int:
        """Elements of a rotated key."""
        return self.cache.parts[1].head_dim

    @property
    def query_dim(self) -> int:
        """Elements of a query that is multiplied by latents."""
        return self.latent + self.rope_dim

    def attention(self, **options: Any) -> AttentionSpec:
        """Return the attention over the latents, with `options` such as the splits of the keys."""
        return AttentionSpec(self.heads, self.cache, self.scale, **options)

    def check(self, label: str, caches: LayerCache) -> None:
        """Check the sizes, and the buffers of a layer.

        Raises:
            FormatError: The kernels do not support a size, or a buffer is too small.
        """
        need_multiple(f"{label}: latent", self.latent, 4)
        need_multiple(f"{label}: rotated key", self.rope_dim, 4)
        buffers = (caches.keys, caches.values)
        for part, buffer in zip(self.cache.parts, buffers, strict=True):
            need_floats(f"{label}: cache", buffer, part.size // 4)


@dataclass(frozen=True, kw_only=True)
class LatentStore(CacheRecord):
    """Parameters of latent_store.wgsl.

    Attributes:
        interleaved: Whether neighbouring elements form a pair.
        subgroups: Whether reductions use subgroup operations.
        pairs: Rotated pairs of the key.
        eps: Epsilon added to the mean square.
    """

    shader = "latent_store"

    interleaved: bool = choice()
    subgroups: bool = choice()
    pairs: int
    eps: float


@dataclass(frozen=True, kw_only=True)
class HeadProducts(WeightsRecord):
    """Parameters of latent_values.wgsl.

    Attributes:
        value: Type of the activations, `f32` or `f16`.
        rows: Token rows of an item, at most 4.
        heads: Query heads.
        key_dim: Rows of the matrix of a head that make keys.
        value_dim: Rows of the matrix of a head that make values.
        latent: Elements of a latent.
        units: Half units (32 weights) of a row.
    """

    shader = "latent_values"

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
        units_each: Half units of an item, a power of two.
    """

    shader = "latent_queries"

    interleaved: bool = choice()
    pairs: int
    units_each: int


@dataclass(frozen=True, kw_only=True)
class LatentScan(AttentionRecord):
    """Parameters of latent_attention.wgsl.

    Attributes:
        split: Whether each workgroup writes the partial result of one split of the keys.
        subgroups: Whether reductions use subgroup operations.
        own_words: Vectors of 4 output elements of each head that a thread accumulates.
        rope_dim: Elements of a rotated key.
        splits: Number of splits of the keys.
    """

    shader = "latent_attention"

    split: bool = choice()
    subgroups: bool = choice()
    own_words: int = choice()
    rope_dim: int
    splits: int


def latent_store(
    ctx: OpContext,
    kv: BufferSlice,
    caches: LayerCache,
    spec: LatentSpec,
    norm: tuple[BufferSlice, float],
    table: BufferSlice,
    *,
    label: str,
) -> list[Phase]:
    """Store the latents and rotated keys of a pass at the slots of its rows.

    Args:
        ctx: Lowering context; its state holds the position, sequence and slot of each row.
        kv: [rows, latent + rope_dim].
        caches: Caches of the layer.
        spec: Sizes.
        norm: Weight of the norm of the latents, f32 [latent], and its epsilon.
        table: Cosines and sines, f32 [context, rope_dim / 2, 2].
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernels do not support a size, or a buffer is too small.
    """
    spec.check(label, caches)
    gain, eps = norm
    ctx.need_values(f"{label}: kv", kv, ctx.max_rows * spec.query_dim)
    need_floats(f"{label}: gain", gain, spec.latent)
    record = LatentStore(
        threads=THREADS,
        variant=spec.cache.dtype,
        interleaved=spec.interleaved,
        subgroups=ctx.subgroups,
        pairs=spec.rope_dim // 2,
        eps=eps,
        **spec.cache.parameters(ctx),
    )
    buffers = {"current": ctx.state.step, "table": table, "gain": gain, "kv": kv}
    return [Phase(record, {**buffers, **caches.buffers}, Work(rows=1), label)]


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
    each = power_of_two(units, 1, ONE_ROW_UNITS if rows == 1 else THREADS // 8)
    record = LatentQueries(
        **_product_fields(ctx, bound, spec),
        interleaved=spec.interleaved,
        pairs=spec.rope_dim // 2,
        units_each=each,
    )
    buffers = {"current": ctx.state.step, "table": table, "q": q, "queries": queries}
    work = Work(count * -(-units // each), record.rows)
    return [Phase(record, {**buffers, **bound.buffers}, work, label)]


def latent_attention(
    ctx: OpContext,
    queries: BufferSlice,
    caches: LayerCache,
    out: BufferSlice,
    spec: LatentSpec,
    attended: AttentionSpec,
    *,
    scratch: BufferSlice | None = None,
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> list[Phase]:
    """Return the sum of the latents that each head attends to.

    Args:
        ctx: Lowering context.
        queries: [rows, heads, latent + rope_dim].
        caches: Caches of the layer, which already hold the rows of the pass.
        out: The result, [rows, heads, latent].
        spec: Sizes.
        attended: `spec.attention`, with the splits of the keys.
        scratch: For partial results if there are several splits, see `attention.scratch_size`.
        label: Name of the op, for messages and profiles.
        tuning_keys: Tuning keys that the splits depend on.

    Raises:
        FormatError: The kernels do not support a size, or a buffer is too small.
        DeviceError: The queries of 4 heads do not fit workgroup memory.
    """
    spec.check(label, caches)
    ctx.need_values(f"{label}: queries", queries, ctx.max_rows * spec.heads * spec.query_dim)
    ctx.need_values(f"{label}: out", out, ctx.max_rows * spec.heads * spec.latent)
    threads = _threads(ctx, spec, label)
    record = LatentScan(
        threads=threads,
        variant=spec.cache.dtype,
        split=scratch is not None,
        subgroups=ctx.subgroups,
        own_words=-(-spec.latent // (4 * threads)),
        rope_dim=spec.rope_dim,
        splits=attended.splits if scratch is not None else 1,
        **attended.parameters(ctx),
    )
    items = -(-spec.heads // 4) * record.splits
    buffers = {"current": ctx.state.step, "q": queries, **caches.buffers}
    if scratch is None:
        return [Phase(record, {**buffers, "out": out}, Work(items, 1), label)]
    partial = partial_buffers(attended, ctx.max_rows, scratch, label)
    combine = AttentionCombine(
        threads=power_of_two(spec.latent // 4, 32, ctx.max_threads),
        value=ctx.values,
        heads=spec.heads,
        head_dim=spec.latent,
        splits=attended.splits,
    )
    return [
        Phase(record, {**buffers, **partial}, Work(items, 1), label, tuning_keys),
        Phase(
            combine,
            {**partial, "out": out},
            Work(spec.heads, 1),
            f"{label}.combine",
            tuning_keys,
        ),
    ]


def latent_values(
    ctx: OpContext,
    latents: BufferSlice,
    up: GpuWeight,
    out: BufferSlice,
    spec: LatentSpec,
    *,
    label: str,
) -> list[Phase]:
    """Return the values of sums of latents.

    Args:
        ctx: Lowering context.
        latents: [rows, heads, latent].
        up: [heads * (key_dim + value_dim), latent] in any format except column-major values.
        out: The result, [rows, heads, value_dim].
        spec: Sizes.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernels do not support the matrix, or a buffer is too small.
    """
    rows, count = ctx.max_rows, spec.heads
    ctx.need_values(f"{label}: latents", latents, rows * count * spec.latent)
    ctx.need_values(f"{label}: out", out, rows * count * spec.value_dim)
    bound = _bind(up, spec, label)
    record = HeadProducts(**_product_fields(ctx, bound, spec))
    each = record.threads // record.units
    buffers = {"current": ctx.state.step, "latents": latents, "out": out, **bound.buffers}
    return [Phase(record, buffers, Work(count * -(-spec.value_dim // each), record.rows), label)]


def _bind(up: GpuWeight, spec: LatentSpec, label: str) -> BoundWeights:
    """Bind the matrices of all heads.

    Raises:
        FormatError: The kernels do not support them.
    """
    obstacle = unreadable_reason(up, int8=False)
    if obstacle is None and half_units(spec.latent) > THREADS:
        obstacle = f"a latent of {spec.latent} elements is too wide for the kernel"
    if obstacle is not None:
        raise FormatError(
            "no kernel reads the matrices of latent attention", where=label, found=obstacle
        )
    return bind_whole((up,))


def _product_fields(ctx: OpContext, bound: BoundWeights, spec: LatentSpec) -> dict[str, Any]:
    return {
        **bound.fields,
        "threads": THREADS,
        "variant": bound.types,
        "value": ctx.values,
        "rows": 1 if ctx.max_rows == 1 else ROWS,
        "heads": spec.heads,
        "key_dim": spec.key_dim,
        "value_dim": spec.value_dim,
        "latent": spec.latent,
        "units": half_units(spec.latent),
    }


def _threads(ctx: OpContext, spec: LatentSpec, label: str) -> int:
    """Return the threads of a workgroup whose memory fits, beside the queries of 4 heads.

    Raises:
        DeviceError: Nothing fits.
    """
    queries = 16 * spec.query_dim
    for threads in (THREADS, THREADS // 2, THREADS // 4):
        if queries + 48 * threads <= ctx.workgroup_storage:
            return threads
    raise DeviceError(
        "latent attention needs more workgroup memory than the device has",
        where=label,
        expected=f"at least {queries + 12 * THREADS} bytes",
        found=ctx.workgroup_storage,
    )
