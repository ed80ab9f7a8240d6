"""Attention over the caches, with grouped queries, sliding window and softcap.

streaming    one workgroup for each row and head: decode over a short context
split_kv     several workgroups split the keys of a row and head, and a second phase combines
             their partial results: decode over a long context, where one workgroup for each
             row and head would not fill the GPU
tiled_small  8 rows share the keys that they read, in passes of many rows together with the heads
             that read the same ones (`rdrr_runtime.phases.attention.attention_tiled`)
tiled_large  likewise for 16 rows
matrices     many rows, on matrices that subgroups multiply
             (`rdrr_runtime.phases.attention.attention_subgroup`)

The tiled kernels can split the keys as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_format.errors import DeviceError, FormatError

from rdrr_runtime.phases.attention.attention_subgroup import attention_subgroup, subgroup_refusal
from rdrr_runtime.phases.attention.attention_tiled import attention_tiled, tiled_refusal
from rdrr_runtime.phases.attention.spec import AttentionRecord, AttentionSpec, SplitTuning
from rdrr_runtime.phases.cache.kv_cache import MAX_HEAD_DIM, LayerCache
from rdrr_runtime.phases.context import OpContext, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


class AttentionKernel(StrEnum):
    """The attention kernels; the manifest's hints name all but `matrices`."""

    STREAMING = "streaming"
    SPLIT_KV = "split_kv"
    TILED_SMALL = "tiled_small"
    TILED_LARGE = "tiled_large"
    MATRICES = "matrices"


TILE_ROWS: Mapping[AttentionKernel, int] = MappingProxyType(
    {AttentionKernel.TILED_SMALL: 8, AttentionKernel.TILED_LARGE: 16}
)


SCANS = (64, 128, 256)
"""Threads of a workgroup of streaming and split_kv, which share the keys of a row and head."""

SPLITS = (SplitTuning(64, 32), SplitTuning(128, 32), SplitTuning(256, 32), SplitTuning(512, 16))


@dataclass(frozen=True, kw_only=True)
class AttentionScan(AttentionRecord):
    """Parameters of attention.wgsl.

    Attributes:
        split: Whether each workgroup writes the partial result of one split of the keys.
        splits: Number of splits of the keys.
    """

    shader = "attention/attention"
    general = True

    split: bool = choice()
    subgroups: bool = choice()
    splits: int


@dataclass(frozen=True, kw_only=True)
class AttentionCombine(Record):
    """Parameters of attention_combine.wgsl.

    Attributes:
        k: Elements of all query heads of a row.
        head_dim: Head dimension.
        splits: Number of splits of the keys.
    """

    shader = "attention/attention_combine"

    value: str = choice()
    k: int
    head_dim: int
    splits: int


def refusal(
    which: AttentionKernel, ctx: OpContext, spec: AttentionSpec, max_binding: int
) -> str | None:
    """Return why a kernel cannot compute an attention, or None if it can.

    Args:
        which: The kernel.
        ctx: Lowering context.
        spec: Specification of the attention.
        max_binding: Bytes of the largest buffer that the device can bind.
    """
    if which in TILE_ROWS:
        return tiled_refusal(ctx, spec, TILE_ROWS[which])
    if which is AttentionKernel.MATRICES:
        return subgroup_refusal(ctx, spec)
    scratch = spec.scratch_bytes(ctx.max_rows)
    if which is AttentionKernel.SPLIT_KV and scratch > max_binding:
        return f"its scratch of {scratch} bytes exceeds the {max_binding} that the device can bind"
    return None


def attention(
    ctx: OpContext,
    q: BufferSlice,
    caches: LayerCache,
    out: BufferSlice | None,
    *,
    spec: AttentionSpec,
    which: AttentionKernel = AttentionKernel.STREAMING,
    scratch: BufferSlice | None = None,
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> list[Phase]:
    """Compute attention; each row attends to the slots of its sequence up to its own.

    The key and value of the row itself must already be in the caches.

    Args:
        ctx: Lowering context. The tiled kernels require that the rows of a pass are in ascending
            slots of one sequence.
        q: Queries [rows, heads, head_dim].
        caches: Key and value cache of the layer.
        out: Result [rows, heads, head_dim]; not the same buffer as q. None to leave the partial
            results of splits in `partial_buffers` of the scratch, for a reader that combines them.
        spec: Specification of the attention.
        which: The kernel.
        scratch: For `split_kv`: at least `AttentionSpec.scratch_bytes` bytes; all layers may share
            it. The tiled kernels split the keys if they get it.
        label: Name of the op, for messages and profiles.
        tuning_keys: Tuning keys that the splits of `split_kv` depend on.

    Raises:
        FormatError: The kernels do not support a size, or there is too little scratch.
        DeviceError: The kernel is a tiled one that `refusal` excludes.
    """
    spec.cache.check(label, caches)
    spec.check_groups(label)
    for name, buffer in (("q", q), ("out", out)):
        if buffer is not None:
            size = ctx.max_rows * spec.heads * spec.cache.head_dim
            ctx.need_values(f"{label}: {name}", buffer, size)
    partial: dict[str, BufferSlice] = {}
    if which is AttentionKernel.SPLIT_KV or (which in TILE_ROWS and scratch is not None):
        partial = partial_buffers(spec, ctx.max_rows, scratch, label)
    result = {} if out is None else {"out": out}
    buffers = {"current": ctx.state.step, "q": q, **caches.buffers, **spec.buffers}
    buffers |= partial or result
    if which in TILE_ROWS:
        rows = TILE_ROWS[which]
        obstacle = tiled_refusal(ctx, spec, rows)
        if obstacle is not None:
            raise DeviceError(f"{which} cannot run: {obstacle}", where=label, hint="use streaming")
        phases = attention_tiled(ctx, spec, buffers, rows, label)
    elif which is AttentionKernel.MATRICES:
        phases = attention_subgroup(ctx, spec, buffers, label)
    else:
        phases = [_scan(ctx, spec, buffers, label, tuning_keys)]
    if partial and result:
        phases.append(_combine(ctx, spec, partial | result, label, tuning_keys))
    return phases


def partial_buffers(
    spec: AttentionSpec, max_rows: int, scratch: BufferSlice | None, label: str
) -> dict[str, BufferSlice]:
    """Return the two ranges of the scratch, for the sums and the statistics of the splits."""
    if scratch is None or scratch.size < spec.scratch_bytes(max_rows):
        raise FormatError(
            "the splits of attention have too little scratch memory",
            where=label,
            expected=f"{spec.scratch_bytes(max_rows)} bytes",
            found=scratch and scratch.size,
        )
    # One phase writes both ranges, the next reads both: no phase reads one and writes the other,
    # which WebGPU does not allow within one buffer.
    boundary = spec.stats_offset(max_rows)
    return {
        "sums": scratch.range(0, boundary),
        "stats": scratch.range(boundary, spec.stats_bytes(max_rows)),
    }


def _scan(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> Phase:
    is_split = "sums" in buffers
    name, splits = ("split_kv", spec.splits) if is_split else ("streaming", 1)
    tuning_key = ctx.workgroup_key(
        f"attention attention.{name}.{spec.shape}, {ctx.max_rows} rows",
        128,
        (threads for threads in SCANS if threads >= spec.cache.head_dim // 4),
    )
    record = AttentionScan(
        threads=tuning_key.used.workgroup,
        variant=f"{name}.{spec.cache.dtype}",
        split=is_split,
        subgroups=ctx.subgroups,
        splits=splits,
        **spec.parameters(ctx),
    )
    return Phase(record, buffers, Work(spec.heads * splits, 1), label, (tuning_key, *tuning_keys))


def _combine(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...],
) -> Phase:
    record = AttentionCombine(
        threads=power_of_two(spec.cache.head_dim // 4, 64, MAX_HEAD_DIM // 4),
        value=ctx.values,
        k=spec.heads * spec.cache.head_dim,
        head_dim=spec.cache.head_dim,
        splits=spec.splits,
    )
    return Phase(record, buffers, Work(spec.heads, 1), f"{label}.combine", tuning_keys)
