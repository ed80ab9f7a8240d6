"""Random routes and stacked matrices of experts, for the tests of their kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_manifests.graph import Clamp
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.experts.routing import expert_groups
from rdrr_runtime.phases.routes import Routed
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.weights.packing import Uploader
from support.gpu import F32, Bench, random_tensor

Ids = npt.NDArray[np.uint32]

CLAMP = Clamp(0.8, 1.7, 0.5)


def routed(
    bench: Bench, rng: np.random.Generator, rows: int, experts: int, top_k: int
) -> tuple[Routed, Ids, F32]:
    """Return random routes, on the device and as arrays of experts and routing weights."""
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(rows)]).astype(np.uint32)
    routing_weights = rng.random((rows, top_k), dtype=np.float32)
    words = np.stack([ids, routing_weights.view(np.uint32)], axis=-1)
    return Routed(bench.upload(words), experts, top_k), ids, routing_weights


def stacked(
    bench: Bench,
    rng: np.random.Generator,
    dtype: str,
    experts: int,
    shape: tuple[int, int],
    layout: Layout = Layout.ROW,
    *,
    units_first: bool = False,
) -> tuple[GpuWeight, F32]:
    """Return the matrices of random experts, on the device and as values [experts, N, K]."""
    matrices = [random_tensor(rng, dtype, layout, shape) for _ in range(experts)]
    kind = DTYPES[dtype]
    weight = allocate_weight(
        bench.arena, kind, layout, shape, "experts", count=experts, units_first=units_first
    )
    with bench.arena.temporary() as temporary, Uploader(bench.arena, temporary) as uploader:
        uploader.fill(weight, layout, shape, (raw for raw, _ in matrices), "experts")
    return weight, np.stack([values for _, values in matrices])


def grouped(
    bench: Bench, routes: Routed, ids: Ids, rows: int, max_rows: int
) -> tuple[OpContext, BufferSlice]:
    """Run expert_groups, check the groups that it writes, and return them with their context."""
    ctx = bench.context(rows, max_rows=max_rows)
    groups = bench.upload(np.full((routes.experts, 1 + max_rows), 0xFFFF, np.uint32))
    bench.run(expert_groups(ctx, routes, groups, label="t"), rows)
    result = np.array(bench.words(groups)).reshape(routes.experts, -1)
    for expert, (count, *members) in enumerate(result.tolist()):
        expected = np.flatnonzero(ids[:rows].reshape(-1) == expert)
        assert members[:count] == expected.tolist()
    return ctx, groups


def clamped(gate: F32, up: F32) -> F32:
    """Return the SwiGLU that is limited by `CLAMP`."""
    gate, up = np.minimum(gate, CLAMP.limit), np.clip(up, -CLAMP.limit, CLAMP.limit)
    return gate / (1 + np.exp(-CLAMP.alpha * gate)) * (up + CLAMP.up_offset)
