"""Run single ops on a device: upload, poison, run, download, compare.

Tests are never skipped for want of an adapter: they fail, and the message says which package to
install (the hint of `DeviceError`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import Capabilities
from rdrr_device.device import Device
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout, geometry
from rdrr_runtime.packing import Segments
from rdrr_runtime.phases.cache.kv_cache import KvSpec
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight
from rdrr_runtime.phases.weights.packing import upload_weight
from rdrr_runtime.records import pack_segments, pack_step

F32 = npt.NDArray[np.float32]

STORAGE_LIMIT = "max-compute-workgroup-storage-size"
THREADS_LIMIT = "max-compute-invocations-per-workgroup"
_LIMITS = {"workgroup_storage": STORAGE_LIMIT, "max_threads": THREADS_LIMIT}

# The error of a sum of some hundred products in f32 in another order than torch's.
TOLERANCE = 1e-4

# Byte offset and size of the f16 scales of a block, by type.
SCALES = {
    "Q4_K": ((0, 2), (2, 2)),
    "Q5_K": ((0, 2), (2, 2)),
    "Q6_K": ((208, 2),),
    "Q8_0": ((0, 2),),
    "Q4_0": ((0, 2),),
    "Q4_1": ((0, 2), (2, 2)),
    "Q5_0": ((0, 2),),
    "Q5_1": ((0, 2), (2, 2)),
}

UNITS_FIRST = (
    ("Q8_0", Layout.ROW),
    ("Q4_K", Layout.ROW),
    ("Q6_K", Layout.ROW),
    ("Q4_K", Layout.COLUMN),
    ("Q6_K", Layout.COLUMN),
)
"""Types and layouts for tests of matrices with the units first, which all kernels read alike."""


@dataclass
class Bench:
    """A device with an arena of buffers and a step context for one test."""

    device: Device
    arena: Arena

    def context(
        self,
        rows: int,
        *,
        base: int = 0,
        slots: Sequence[int] | None = None,
        sequences: Sequence[int] | None = None,
        tokens: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        max_rows: int | None = None,
        values: str = "f32",
        segments: Segments | None = None,
    ) -> OpContext:
        """Return the context of a step of `rows` token rows whose first KV slot is `base`."""
        max_rows = max_rows or rows
        state = State.create(self.arena, max_rows, ring=4, packs_texts=segments is not None)
        if segments is not None and state.segments is not None:
            words = pack_segments(segments.starts, segments.ends, segments.types)
            self.device.write(state.segments, words)
        packed = pack_step(
            tokens or [0] * rows,
            slots or range(base, base + rows),
            positions=positions,
            sequences=sequences or 0,
        )
        self.device.write(state.step, packed)
        return OpContext(
            state,
            max_rows,
            Capabilities(self.device.features, {STORAGE_LIMIT: self.device.limits[STORAGE_LIMIT]}),
            values=values,
            multi_sequence=sequences is not None,
        )

    def upload(self, array: npt.NDArray[np.generic]) -> BufferSlice:
        return self.arena.upload("operand", np.ascontiguousarray(array))

    def poisoned(self, *shape: int) -> BufferSlice:
        """Allocate an output full of NaN, which exposes elements that are never written."""
        return self.upload(np.full(shape, np.nan, np.float32))

    def run(self, phases: Sequence[Phase], rows: int) -> None:
        self.device.submit(
            [
                self.device.bind(as_dispatch(phase) if isinstance(phase, Phase) else phase)
                for phase in phases
            ],
            rows,
        )

    def download(self, buffer: BufferSlice, *shape: int) -> F32:
        return self.device.read(buffer).view(np.float32)[: int(np.prod(shape))].reshape(shape)

    def words(self, buffer: BufferSlice) -> list[int]:
        return [int(word) for word in self.device.read(buffer).view(np.uint32)]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape, dtype=np.float32)


def in_int8(x: F32, group: int = 32) -> F32:
    """Round x [rows, K] to int8 with one scale per `group` elements; return the rounded values."""
    rows, k = x.shape
    wide = np.zeros((rows, -(-k // group) * group), np.float32)
    wide[:, :k] = x
    groups = wide.reshape(rows, -1, group)
    most = np.abs(groups).max(axis=2, keepdims=True)
    scale = most / np.float32(127)
    # Shaders multiply by the inverse, which rounds some values differently than a division.
    codes = np.rint(groups * (np.float32(127) / np.where(most > 0, most, 1)))
    return (codes * scale).reshape(rows, -1)[:, :k]


def random_tensor(
    rng: np.random.Generator, dtype: str, layout: Layout, shape: tuple[int, int]
) -> tuple[npt.NDArray[np.uint8], F32]:
    """Return the stored bytes of a random tensor and its values [N, K].

    Block types get random bits with small scales, so that every code occurs and the padding holds
    values other than zero, as in packages of other writers.
    """
    from rdrr_format.codecs import CODECS

    kind = DTYPES[dtype]
    stored = geometry(kind, shape, layout)
    blocks = rng.integers(
        0, 256, (stored.rows, stored.row_blocks, kind.block_bytes), dtype=np.uint8
    )
    for at, size in SCALES.get(dtype, ()):
        # Some scales are subnormal in f16, because those of real weights often are.
        signs = rng.choice([-1.0, 1.0], blocks.shape[:2])
        scales = (signs * rng.uniform(1e-6, 1e-4, blocks.shape[:2])).astype("<f2")
        blocks[:, :, at : at + size] = scales[..., None].view(np.uint8)
    if dtype == "MXFP4":
        blocks[:, :, 0] = rng.integers(110, 116, blocks.shape[:2])
    raw = blocks.reshape(stored.rows, stored.row_bytes)
    if not kind.is_block:
        values = normal(rng, stored.rows, stored.row_elements)
        raw = CODECS[dtype].quantize(values)
    decoded = CODECS[dtype].dequantize(raw, stored.row_elements)
    if layout is Layout.FLAT:
        return raw.reshape(-1), np.ascontiguousarray(decoded.reshape(shape))
    return raw.reshape(-1), np.ascontiguousarray(decoded if layout is Layout.ROW else decoded.T)


def stored_matrix(
    bench: Bench,
    rng: np.random.Generator,
    dtype: str,
    layout: Layout,
    shape: tuple[int, int],
    *,
    units_first: bool = False,
) -> tuple[GpuWeight, F32]:
    """Return a random matrix [N, K] on the device, and its values."""
    raw, values = random_tensor(rng, dtype, layout, shape)
    weight = upload_weight(
        bench.arena, DTYPES[dtype], layout, shape, raw, "weight", units_first=units_first
    )
    return weight, values


def cache_in_q8_0(values: F32) -> tuple[npt.NDArray[np.uint8], F32]:
    """Encode a cache [kv_heads, context, head_dim] in Q8_0; return its bytes and its values."""
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1) / 127).astype("<f2")
    wide = scales.astype(np.float32)[:, None]
    codes = np.clip(np.rint(blocks / np.where(wide > 0, wide, 1)), -128, 127).astype(np.int8)
    raw = np.concatenate([codes.reshape(-1).view(np.uint8), scales.view(np.uint8)])
    return raw, (codes * wide).reshape(values.shape)


def filled_cache(
    bench: Bench, rng: np.random.Generator, cache: KvSpec, used: int
) -> tuple[list[F32], list]:
    """Return random keys and values, and caches with them that hold NaN after `used` slots."""
    shape = (cache.kv_heads, cache.context, cache.head_dim)
    if cache.dtype == "q8_0":
        wide = [normal(rng, *shape) for _ in range(2)]
        for array in wide:
            array[:, used:] = 1e5  # `cache_in_q8_0` has no codes for NaN
        packed = [cache_in_q8_0(array) for array in wide]
        return [values[:, :used] for _, values in packed], [bench.upload(raw) for raw, _ in packed]
    kind = np.float16 if cache.dtype == "f16" else np.float32
    arrays = [normal(rng, *shape).astype(kind) for _ in range(2)]
    for array in arrays:
        array[:, used:] = np.nan
    return [values[:, :used].astype(np.float32) for values in arrays], [
        bench.upload(a) for a in arrays
    ]


def on_device(ctx: OpContext, *, software: bool | None = None, **changed: Any) -> OpContext:
    """Return a context of a device with other limits.

    Args:
        ctx: The context.
        software: Whether the adapter is a software one; as before when None.
        changed: `workgroup_storage` in bytes, `max_threads`, and fields of the context.
    """
    before = ctx.capabilities
    limits = {_LIMITS[name]: changed.pop(name) for name in _LIMITS if name in changed}
    capabilities = replace(
        before,
        limits={**before.limits, **limits},
        software=before.software if software is None else software,
    )
    return replace(ctx, capabilities=capabilities, **changed)
