"""Tiled attention: a tile of consecutive rows of one sequence shares the keys that it reads."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params

from rdrr_runtime.phases.attention_spec import AttentionRecord, AttentionSpec
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import KV_TYPES
from rdrr_runtime.phases.phase import Phase, Work, choice

TILE_KEYS = (32, 16, 8)  # multiples of 8, in order of preference
THREADS_PER_ROW = 8


@dataclass(frozen=True)
class AttentionTileTuning(Params):
    """Tuning parameters of attention_tiled.

    Attributes:
        keys: Keys of a tile, a multiple of 8.
    """

    keys: int


@dataclass(frozen=True, kw_only=True)
class AttentionTiled(AttentionRecord):
    """Parameters of attention_tiled.wgsl.

    Attributes:
        keys_per_thread: Keys of a tile that a thread scores.
        own_words: Vectors of 4 output elements that a thread accumulates.
    """

    shader = "attention_tiled"
    trusted = True

    keys_per_thread: int = choice()
    own_words: int = choice()


def attention_tiled(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    rows: int,
    label: str,
) -> Phase:
    """Lower attention to one phase with tiles of `rows` rows; `tiled_refusal` must return None.

    Args:
        ctx: Lowering context; the rows of a pass are in ascending slots of one sequence.
        spec: Specification of the attention.
        buffers: `current`, `q`, `k_cache`, `v_cache` and `out`.
        rows: Rows of a tile.
        label: Name of the op, for messages and profiles.
    """
    tuning_key = ctx.tuning_key(
        f"attention attention_tiled.{rows}.{spec.shape}, {ctx.max_rows} rows",
        AttentionTileTuning(tile_keys(spec, rows, ctx.workgroup_storage)),
        (
            AttentionTileTuning(one)
            for one in TILE_KEYS
            if _tile_bytes(spec, rows, one) <= ctx.workgroup_storage
        ),
    )
    record = AttentionTiled(
        threads=THREADS_PER_ROW * rows,
        variant=f"{rows}.{spec.cache.dtype}",
        keys_per_thread=tuning_key.used.keys // 8,
        own_words=-(-spec.cache.head_dim // (4 * THREADS_PER_ROW)),
        **spec.parameters(ctx),
    )
    return Phase(record, buffers, Work(spec.heads, rows), label, (tuning_key,))


def tiled_refusal(ctx: OpContext, spec: AttentionSpec, rows: int) -> str | None:
    """Return why tiles of `rows` rows cannot compute an attention, or None if they can."""
    if ctx.multi_sequence:
        return "rows of different sequences cannot share a tile of keys"
    if not tile_keys(spec, rows, ctx.workgroup_storage):
        return (
            f"a tile of {rows} rows of {spec.cache.head_dim} elements needs "
            f"{_tile_bytes(spec, rows, TILE_KEYS[-1])} bytes of workgroup memory, "
            f"and the device has {ctx.workgroup_storage}"
        )
    return None


def tile_keys(spec: AttentionSpec, rows: int, workgroup_storage: int) -> int:
    """Return the most keys of a tile that fit workgroup memory beside `rows` queries; 0 if none."""
    fitting = (one for one in TILE_KEYS if _tile_bytes(spec, rows, one) <= workgroup_storage)
    return next(fitting, 0)


def _tile_bytes(spec: AttentionSpec, rows: int, keys: int) -> int:
    cache = spec.cache
    queries = 4 * rows * cache.head_dim
    tile = keys * (cache.head_dim + 4) * KV_TYPES[cache.dtype].tile_bytes
    weights = 4 * rows * (keys + THREADS_PER_ROW)
    return queries + tile + weights
