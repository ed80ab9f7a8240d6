"""Tests that no two threads write different components of a vector that they share.

WGSL allows a compiler to read the whole vector, change one component and write the vector back, so
one of two such writes may be lost. Most devices lose none, so the text of every shader is scanned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.devices.webgpu import SHADERS
from rdrr_device.device import Device
from rdrr_device.kernels import Kernel
from rdrr_runtime.compile.choice.hints import Policy, resolve
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.rows.inject import inject
from rdrr_runtime.phases.rows.interpolate import interpolate
from rdrr_runtime.phases.rows.limit import limit
from rdrr_runtime.phases.rows.mean_rows import MeanForm, mean_rows
from rdrr_runtime.phases.states.delta_rule import DeltaSpec
from rdrr_runtime.phases.states.delta_step import StepOperands, StepSpec, delta_step
from support.gpu import Bench
from support.lowered import (
    ATTENTIONS,
    HINTS,
    MODELS,
    empty_package,
    kernels_of,
    kernels_of_loading,
    kernels_of_matrices,
    kernels_of_sampling,
)
from support.op_examples import EXAMPLES
from support.packages import llama_manifest
from support.shader_text import SHADERS_OF_PHASES, component_writes
from support.single_ops import Operands, lowered

DECLARED = """
struct Pair { a: vec2<f32>, b: array<vec4<u32>, 2u> }
alias Word = vec4<f32>;
var<workgroup> tile: array<vec4<f32>, 4u * WORDS>;
var<workgroup> words: array<Word, 8>;
var<workgroup> numbers: array<f32, 8>;
var<workgroup> pairs: array<Pair, 8>;
var<storage, read_write> y: array<vec4<f32>>;
var<storage, read> x: array<vec4<f32>>;
"""


@pytest.mark.parametrize(
    "written",
    ["tile[t / 4u][t % 4u]", "words[at[t]].x", "pairs[t].a.y", "pairs[t].b[1][t]", "y[t].w"],
)
@pytest.mark.parametrize("write", ["{} = 1.0;", "{} += 1.0;", "{}++;"])
def test_a_write_to_a_component_is_found(written: str, write: str) -> None:
    body = write.format(written)
    assert component_writes(f"{DECLARED} fn phase(t: u32) {{ {body} }}") == (written,)


def test_a_pointer_to_a_vector_is_found() -> None:
    assert component_writes(f"{DECLARED} fn phase(t: u32) {{ f(&words[t]); }}") == ("words[t]",)
    assert component_writes(f"{DECLARED} fn phase(t: u32) {{ f(&numbers[t]); }}") == ()


@pytest.mark.parametrize(
    "body",
    [
        "tile[t] = vec4<f32>(0.0);",
        "numbers[t] = tile[t].x;",
        "pairs[t].a = x[t].xy;",
        "if (tile[t][0] == y[t].x) { numbers[t] += 1.0; }",
        "var local = y[t]; local.x = 1.0; // tile[t].x = 1.0;",
    ],
)
def test_writes_to_scalars_and_local_vectors_are_not_reported(body: str) -> None:
    assert component_writes(f"{DECLARED} fn phase(t: u32) {{ {body}\n }}") == ()


def kernels_of_models(device: Device, folder: Path) -> Iterator[Kernel]:
    for name, model in MODELS.items():
        package = empty_package(folder / name, llama_manifest(**model))
        yield from kernels_of(package, device, Policy(), "f16")


def kernels_of_hints(device: Device, folder: Path) -> Iterator[Kernel]:
    package = empty_package(folder / "hints", llama_manifest())
    for hints in (*HINTS.values(), *ATTENTIONS.values()):
        for kv_dtype, fused in (("f16", True), ("f32", False), ("q8_0", False)):
            policy = resolve({"run flag": hints})
            yield from kernels_of(package, device, policy, kv_dtype, fused)


def kernels_of_ops(bench: Bench) -> Iterator[Kernel]:
    """Yield the kernels of every op of the graph, lowered by itself."""
    for example in EXAMPLES.values():
        for rows in (1, 5, 40):
            operands = Operands.random(example, rows, np.random.default_rng(rows))
            for phase in lowered(bench, example, operands)[0]:
                yield as_dispatch(phase).kernel


def kernels_of_linear_attention(bench: Bench) -> Iterator[Kernel]:
    """Yield the kernel of a step of linear attention, which serves several ops."""
    spec = StepSpec(DeltaSpec(4, 2, 32, 32, 1e-6), kernel=4, stride=400, strength=384, decay=388)
    operands = StepOperands(*(bench.poisoned(64 * 1024) for _ in fields(StepOperands)))
    for phase in delta_step(bench.context(1), operands, spec=spec, label="delta"):
        yield as_dispatch(phase).kernel


def kernels_of_features(bench: Bench) -> Iterator[Kernel]:
    """Yield the kernels of towers, of images in prompts, and of the means of embeddings."""
    ctx, x = bench.context(4), bench.poisoned(4, 64)
    phases = (
        *interpolate(ctx, x, x, x, x, width=32, label="t"),
        *inject(ctx, x, x, width=64, first=9, adds=True, label="t"),
        *inject(ctx, x, x, width=64, first=9, adds=False, label="t"),
        *mean_rows(ctx, x, x, x, MeanForm(64), "t"),
        *limit(ctx, x, x, x, width=64, first=0, label="t"),
    )
    yield from (as_dispatch(phase).kernel for phase in phases)


@pytest.mark.thorough
def test_no_kernel_writes_a_component(request, bench, tmp_path, monkeypatch) -> None:
    labels: dict[str, str] = {}
    for features in ("device", "plain_device"):
        device = request.getfixturevalue(features)
        for software in (True, False):  # in f32 on software adapters, in int8 on others
            monkeypatch.setattr(device, "info", replace(device.info, software=software))
            folder = tmp_path / f"{features}.{software}"
            folder.mkdir()
            kernel_sets = (kernels_of_models(device, folder), kernels_of_hints(device, folder))
            labels |= {kernel.source: kernel.label for kernel in chain(*kernel_sets)}
        others = (kernels_of_sampling(device), kernels_of_loading(device))
        labels |= {other.source: other.label for other in chain(*others)}
    labels |= {op.source: op.label for op in kernels_of_ops(bench)}
    labels |= {kernel.source: kernel.label for kernel in kernels_of_linear_attention(bench)}
    labels |= {kernel.source: kernel.label for kernel in kernels_of_features(bench)}
    for layout in ("row", "column"):
        package = empty_package(tmp_path / layout, llama_manifest(layout=layout))
        labels |= {kernel.source: kernel.label for kernel in kernels_of_matrices(package)}
    racing = {label: writes for text, label in labels.items() if (writes := component_writes(text))}
    assert racing == {}
    names = (label.partition(".")[0] for label in labels.values())
    shaders = {"norm" if name in ("rmsnorm", "layer_norm") else name for name in names}
    assert shaders == {file.stem for file in SHADERS_OF_PHASES}


@pytest.mark.parametrize("dtype", SHADERS)
def test_no_shader_that_quantizes_writes_a_component(dtype) -> None:
    assert component_writes(SHADERS[dtype].kernel.source) == ()
