"""Tint, the WGSL compiler of Dawn and Chromium, accepts what naga accepts.

These are the kernels of passes that are lowered without running; `.ci/run` compiles in addition
every kernel that any test has run. `.ci/dawn` sets up what is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rdrr_converter.devices.webgpu import SHADERS
from rdrr_device.device import Device
from rdrr_device.kernels import Kernel
from rdrr_device.paper import PaperArena
from rdrr_device.shaders import Access, Binding
from rdrr_manifests.package import Package, open_package
from rdrr_runtime.compile.hints import Policy, resolve
from rdrr_runtime.compile.pass_spec import (
    DECODE,
    PREFILL,
    SCORE,
    SMALL_WINDOW,
    WINDOW,
    batch_fill,
    batch_of,
)
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.batch_advance import batch_advance
from rdrr_runtime.phases.context import State
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.logprobs import LogprobBuffers, logprobs
from rdrr_runtime.phases.sample import sample, sample_rows, set_tokens
from rdrr_runtime.phases.sample_buffers import SampleBuffers
from rdrr_runtime.sampling.params import SamplingParams
from support.dawn import FOLDER, Compiled, compile_requests, request_of
from support.manifests import write_manifest
from support.packages import VOCAB, llama_manifest

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
    "Q4_K column": {"dtype": "Q4_K", "layout": "column"},
    "Q4_K flat": {"dtype": "Q4_K", "layout": "flat"},
    "Q6_K column": {"dtype": "Q6_K", "layout": "column"},
    **{dtype: {"dtype": dtype} for dtype in ("Q4_0", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")},
    **{dtype: {"dtype": dtype} for dtype in ("F16", "BF16", "F32")},
    "experts in Q4_K": {"dtype": "Q4_K", "moe": EXPERTS},
    "experts in Q6_K column": {"dtype": "Q6_K", "layout": "column", "moe": EXPERTS},
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


@pytest.fixture(autouse=True)
def dawn() -> None:
    if not (FOLDER / "installed").is_file():
        reason = "Dawn is not set up: run .ci/dawn"
        # A check that CI leaves out is none.
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def empty_package(folder, manifest) -> Package:
    """A package whose weights nobody reads."""
    folder.mkdir()
    for shard in manifest["shards"]:
        np.zeros(shard["size"], np.uint8).tofile(folder / shard["filename"])
    write_manifest(folder, manifest)
    (folder / manifest["tokenizer"]["file"]).write_text("{}", encoding="utf-8")
    return open_package(folder)


def kernels_of(
    package: Package, device: Device, policy: Policy, kv_dtype: str, fused: bool = True
) -> Iterator[Kernel]:
    """Those of every pass of a sequence and of a batch."""
    arena = PaperArena(device)
    plan = Plan(package, device, arena, policy, context=CONTEXT, kv_dtype=kv_dtype, fused=fused)
    made = [plan.lowered(spec) for spec in PASSES]
    if kv_dtype != "q8_0":  # of which a batch has no cache
        state = State.create(arena, CONTEXT, ring=4 * BATCHES[-1])
        cache = KvCache.allocate(arena, plan.graph, CONTEXT, kv_dtype, 3)
        made += [
            plan.lower(spec(rows), state=state, cache=cache)
            for rows in BATCHES
            for spec in (batch_of, batch_fill)
        ]
    for one in made:
        yield from (as_dispatch(phase).kernel for phase in one.phases)


def compiled(kernels: Iterable[Kernel]) -> Compiled:
    """Each text with one set of its constants."""
    return compile_requests(map(request_of, {one.source: one for one in kernels}.values()))


@pytest.mark.parametrize(
    ("features", "software"),
    [("device", True), ("device", False), ("plain_device", True)],
    ids=["in f32", "in int8", "without optional features"],
)
def test_tint_compiles_the_kernels_of_every_weight_type(
    request, tmp_path, monkeypatch, features, software
):
    device = request.getfixturevalue(features)
    monkeypatch.setattr(device, "info", replace(device.info, software=software))
    kernels = [
        one
        for name, model in MODELS.items()
        for one in kernels_of(
            empty_package(tmp_path / name, llama_manifest(**model)), device, Policy(), "f16"
        )
    ]
    result = compiled(kernels)
    assert result.refused == ()
    assert result.count > 50


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
def test_tint_compiles_the_kernels_of_every_attention_and_cache(device, tmp_path, kv_dtype):
    package = empty_package(tmp_path / "package", llama_manifest("F16"))
    kernels = [
        one
        for hints in ATTENTIONS.values()
        for one in kernels_of(package, device, resolve({"run flag": hints}), kv_dtype)
    ]
    result = compiled(kernels)
    assert result.refused == ()
    assert result.count > 20


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "op by op"])
def test_tint_compiles_the_kernels_of_every_product_hint(device, tmp_path, fused):
    package = empty_package(tmp_path / "package", llama_manifest())
    kernels = [
        one
        for hints in HINTS.values()
        for one in kernels_of(package, device, resolve({"run flag": hints}), "f16", fused)
    ]
    result = compiled(kernels)
    assert result.refused == ()
    assert result.count > 20


def test_tint_compiles_the_kernels_of_sampling(device):
    arena = PaperArena(device)
    state = State.create(arena, 4)
    options = SamplingParams(temperature=1.0, top_k=5, top_p=0.9)
    logits, picks = arena.empty("logits", 16 * VOCAB), arena.empty("picks", 32)
    buffers = SampleBuffers.create(arena, VOCAB, rows=4, sequences=4)
    made = [
        set_tokens(buffers, "set"),
        *sample(buffers, state, logits, options, "sample"),
        *sample_rows(buffers, state, logits, picks, options, "sample"),
        *batch_advance(state, picks, rows=4, steps=4, label="advance"),
        *logprobs(LogprobBuffers.create(arena, 8), state, logits, vocabulary=VOCAB, top=5),
    ]
    assert compiled(as_dispatch(one).kernel for one in made).refused == ()


@pytest.mark.parametrize("dtype", SHADERS)
def test_tint_compiles_the_shaders_that_quantize(dtype):
    assert compiled([SHADERS[dtype].kernel]).refused == ()


@pytest.mark.parametrize("varies", [False, True], ids=["uniform", "not uniform"])
def test_tint_refuses_a_barrier_that_not_every_thread_reaches(varies):
    condition = "t < 2u" if varies else "y[0] < 2u"
    source = f"""
        @group(0) @binding(0) var<storage, read> y: array<u32>;
        var<workgroup> x: array<u32, 4>;
        @compute @workgroup_size(4)
        fn main(@builtin(local_invocation_index) t: u32) {{
            x[t] = t;
            if ({condition}) {{
                workgroupBarrier();
            }}
        }}
    """
    result = compiled([Kernel("barrier", source, "main", (), (Binding("y", Access.READ),))])
    found = [message for _, messages in result.refused for message in messages]
    assert len(found) == varies
    assert all("uniform control flow" in message for message in found)
