"""Kernels of passes that are lowered without running, for models that differ in format or ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rdrr_device.capabilities import (
    DEFAULT_LIMITS,
    MATRIX_FEATURE,
    Capabilities,
    MatrixShape,
)
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_device.kernels import Kernel
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout, geometry
from rdrr_manifests.package import Package, open_package
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import (
    DECODE,
    PREFILL,
    SCORE,
    SMALL_WINDOW,
    WINDOW,
    batch_fill,
    batch_of,
)
from rdrr_runtime.exec.plan import Plan, dry_run_plan
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.products.requantize import is_rounded, requantized, scratch_bytes
from rdrr_runtime.phases.rows.copy import copy
from rdrr_runtime.phases.sampling.batch_advance import batch_advance
from rdrr_runtime.phases.sampling.fill_masks import fill_masks, record_bytes, rules_bytes
from rdrr_runtime.phases.sampling.logprobs import LogprobBuffers, logprobs
from rdrr_runtime.phases.sampling.sample import sample, scatter_entries
from rdrr_runtime.phases.sampling.sample_buffers import SampleBuffers
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.gpu_weight import allocate_weight
from rdrr_runtime.phases.weights.repack import Chunk, repack_columns, repack_rows
from rdrr_runtime.records import searches_of
from rdrr_runtime.sampling.params import SamplingParams
from support.manifests import write_manifest
from support.packages import VOCAB

CONTEXT = 96
PASSES = (DECODE, SMALL_WINDOW, PREFILL, SCORE, WINDOW)
BATCHES = (2, 8, 32)
EXPERTS = {
    "numExperts": 6,
    "numExpertsPerToken": 2,
    "expertFormat": "mixtral",
    "expertIntermediateSize": 256,
    "normalizeWeights": False,
    "sharedExpertIntermediateSize": 256,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "Q4_K": {"dtype": "Q4_K", "layout": "row"},
    "Q4_K column-major": {"dtype": "Q4_K", "layout": "column"},
    "Q4_K flat": {"dtype": "Q4_K", "layout": "flat"},
    "Q6_K column-major": {"dtype": "Q6_K", "layout": "column"},
    **{dtype: {"dtype": dtype} for dtype in ("Q4_0", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")},
    **{dtype: {"dtype": dtype} for dtype in ("F16", "BF16", "F32")},
    "experts in Q4_K": {"dtype": "Q4_K", "moe": EXPERTS},
    "experts in Q6_K column-major": {"dtype": "Q6_K", "layout": "column", "moe": EXPERTS},
    "experts in F16": {"dtype": "F16", "moe": EXPERTS},
}
ATTENTIONS: Mapping[str, Mapping[str, str]] = {
    kernel: {"attentionDecode": kernel, "attentionPrefill": kernel}
    for kernel in ("auto", "streaming", "split_kv", "tiled_small", "tiled_large")
}
HINTS: Mapping[str, Mapping[str, str]] = {
    "f32": {"computePrecision": "f32"},
    "f16": {"computePrecision": "f16"},
    "int8": {"q4kMatmul": "fused_q4k_int8"},
    "gemv": {"f16Matmul": "gemv", "q4kMatmul": "dequant_f16"},
    "tiled": {"f16Matmul": "tiled", "q4kMatmul": "dequant_f16"},
}


def empty_package(folder: Path, manifest: dict[str, Any]) -> Package:
    """Write and open a package whose weights are never read."""
    folder.mkdir()
    for shard in manifest["shards"]:
        np.zeros(shard["size"], np.uint8).tofile(folder / shard["filename"])
    write_manifest(folder, manifest)
    (folder / manifest["tokenizer"]["file"]).write_text("{}", encoding="utf-8")
    return open_package(folder)


MATRIX_SHAPES = (MatrixShape(16, 16, 16, "f16", "f32"),)
WITH_MATRICES = Capabilities(
    features=frozenset({"shader-f16", "subgroup", MATRIX_FEATURE}),
    limits=DEFAULT_LIMITS | {"max-compute-workgroup-storage-size": 49_152},
    subgroup_sizes=(32, 32),
    matrices=MATRIX_SHAPES,
)
"""A device whose subgroups multiply matrices."""


def kernels_of_matrices(package: Package) -> Iterator[Kernel]:
    """Yield the kernels of a prompt and a batch where subgroups multiply matrices."""
    rows = 2 * CONTEXT  # attention is on matrices from 128 on
    plan = dry_run_plan(package, WITH_MATRICES, Policy(), rows, "f16")
    for spec in (PREFILL, batch_of(32)):
        yield from (as_dispatch(phase).kernel for phase in plan.lowered(spec).phases)


def kernels_of(
    package: Package, device: Device, policy: Policy, kv_dtype: str, fused: bool = True
) -> Iterator[Kernel]:
    """Yield the kernels of every pass of a single sequence and of batches."""
    arena = DryRunArena(device.capabilities)
    plan = Plan(package, arena, policy, context=CONTEXT, kv_dtype=kv_dtype, fused=fused)
    plans = [plan.lowered(spec) for spec in PASSES]
    plan.keep_hidden()
    plans.append(plan.lowered(replace(DECODE, keeps_hidden=True)))
    if kv_dtype != "q8_0":  # batches do not support a cache in q8_0
        state = State.create(arena, CONTEXT, ring=4 * BATCHES[-1])
        cache = KvCache.allocate(arena, plan.graph, CONTEXT, kv_dtype, 3)
        plans += [
            plan.lower(spec(rows), state=state, cache=cache)
            for rows in BATCHES
            for spec in (batch_of, batch_fill)
        ]
    for lowered in plans:
        yield from (as_dispatch(phase).kernel for phase in lowered.phases)


def kernels_of_sampling(device: Device) -> Iterator[Kernel]:
    """Yield the kernels that sample tokens of a single sequence and of the rows of a batch."""
    arena = DryRunArena(device.capabilities)
    state = State.create(arena, 4)
    options = SamplingParams(temperature=1.0, top_k=5, top_p=0.9)
    logits, picks = arena.empty("logits", 16 * VOCAB), arena.empty("picks", 32)
    buffers = SampleBuffers.create(arena, VOCAB, rows=4, sequences=4)
    rules, record = arena.empty("rules", rules_bytes(2)), arena.empty("record", record_bytes(2))
    phases = [
        scatter_entries(buffers, "set"),
        *sample(buffers, state, logits, searches_of(options), "sample"),
        *sample(buffers, state, logits, searches_of(options), "sample", picks),
        *batch_advance(state, picks, rows=4, steps=4, label="advance"),
        *fill_masks(state, picks, rules, record, window=2, label="fill masks"),
        *logprobs(LogprobBuffers.create(arena, 8), state, logits, vocabulary=VOCAB, top=5),
    ]
    return (as_dispatch(phase).kernel for phase in phases)


def kernels_of_loading(device: Device) -> Iterator[Kernel]:
    """Yield the kernels that repack matrices of every type for the GPU, and a plain copy."""
    arena, shape = DryRunArena(device.capabilities), (512, 512)
    phases = list(copy(arena.empty("x", 1024), arena.empty("y", 1024), label="copy"))
    for name, form in FORMATS.items():
        for layout in (Layout.ROW,) if form.values else (Layout.ROW, Layout.COLUMN):
            dtype = DTYPES[name]
            weight = allocate_weight(arena, dtype, layout, shape, name)
            blocks = geometry(dtype, shape, layout).row_blocks
            words = arena.empty("chunk", 64)
            chunk = Chunk(
                arena.empty("blocks", 512 * blocks * dtype.block_bytes), words, 0, 512, blocks
            )
            if layout is Layout.COLUMN:
                phases += [step.phase for step in repack_columns(weight, chunk, 0, name)]
            elif not form.values:
                phases += [step.phase for step in repack_rows(weight, chunk, name)]
            if is_rounded(weight):
                scratch = arena.empty("scratch", scratch_bytes(weight, 1 << 27))
                phases += requantized(weight, scratch, 1 << 27, label=name).phases
    return (as_dispatch(phase).kernel for phase in phases)
