"""Tests that Tint, the WGSL compiler of Dawn and Chromium, accepts the kernels.

The kernels are those of passes that are lowered but not run; `.ci/run` also compiles every kernel
that any test has run. `.ci/dawn` sets up Dawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

import pytest
from rdrr_converter.devices.webgpu import SHADERS
from rdrr_device.kernels import Kernel
from rdrr_device.shaders import Access, Binding
from rdrr_runtime.compile.choice.hints import Policy, resolve
from support.dawn import NOT_SET_UP, Compiled, compile_requests, is_set_up, request_of
from support.lowered import (
    ATTENTIONS,
    HINTS,
    MODELS,
    empty_package,
    kernels_of,
    kernels_of_sampling,
)
from support.packages import llama_manifest


@pytest.fixture(autouse=True)
def dawn() -> None:
    if not is_set_up():
        # CI must not skip the check.
        pytest.fail(NOT_SET_UP) if os.environ.get("CI") else pytest.skip(NOT_SET_UP)


def compiled(kernels: Iterable[Kernel]) -> Compiled:
    """Compile each shader source once, with one of its sets of constants."""
    return compile_requests(map(request_of, {kernel.source: kernel for kernel in kernels}.values()))


@pytest.mark.thorough
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
        phase
        for name, model in MODELS.items()
        for phase in kernels_of(
            empty_package(tmp_path / name, llama_manifest(**model)), device, Policy(), "f16"
        )
    ]
    result = compiled(kernels)
    assert result.refused == ()
    assert result.count > 50


@pytest.mark.parametrize(
    "kv_dtype",
    # CI also compiles what other tests run, with caches in f16 and f32.
    [*(pytest.param(dtype, marks=pytest.mark.thorough) for dtype in ("f16", "f32")), "q8_0"],
)
def test_tint_compiles_the_kernels_of_every_attention_and_cache(device, tmp_path, kv_dtype):
    package = empty_package(tmp_path / "package", llama_manifest("F16"))
    kernels = [
        phase
        for hints in ATTENTIONS.values()
        for phase in kernels_of(package, device, resolve({"run flag": hints}), kv_dtype)
    ]
    result = compiled(kernels)
    assert result.refused == ()
    assert result.count > 20


@pytest.mark.thorough
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "op by op"])
def test_tint_compiles_the_kernels_of_every_product_hint(device, tmp_path, fused):
    package = empty_package(tmp_path / "package", llama_manifest())
    kernels = [
        phase
        for hints in HINTS.values()
        for phase in kernels_of(package, device, resolve({"run flag": hints}), "f16", fused)
    ]
    result = compiled(kernels)
    assert result.refused == ()
    assert result.count > 20


def test_tint_compiles_the_kernels_of_sampling(device):
    assert compiled(kernels_of_sampling(device)).refused == ()


@pytest.mark.parametrize("dtype", SHADERS)
def test_tint_compiles_the_shaders_of_the_converter(dtype):
    assert compiled([SHADERS[dtype].kernel]).refused == ()


@pytest.mark.parametrize("differs", [False, True], ids=["uniform", "not uniform"])
def test_tint_refuses_a_barrier_that_not_every_thread_reaches(differs):
    condition = "t < 2u" if differs else "y[0] < 2u"
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
    messages_of_refused = [message for _, messages in result.refused for message in messages]
    assert len(messages_of_refused) == differs
    assert all("uniform control flow" in message for message in messages_of_refused)
