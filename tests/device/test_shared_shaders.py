"""On software adapters kernels that differ only in numbers share a shader, and compute the same."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shaders import Access, Binding
from rdrr_device.shared_shaders import NAME, shared
from rdrr_runtime.gpu import GpuBackend
from support.comparison import relative_error
from support.devices import new_device
from support.packages import llama_manifest, write_random_package

SOURCE = """// COUNT values in groups of SIZE
override SIZE: u32;  // threads
override COUNT: u32;
override SHIFT: i32;
override FACTOR: f32;
override NEGATES: bool = false;
override UNUSED: u32 = 3u;
override DOUBLE = 2u * SIZE;
struct Entry { shift: u32 }
var<workgroup> held: array<f32, DOUBLE>;
@group(0) @binding(0) var<storage, read_write> values: array<f32>;

fn factor() -> f32 { if (NEGATES) { return -FACTOR; } return FACTOR; }

@compute @workgroup_size(SIZE)
fn main(@builtin(local_invocation_index) i: u32) {
    let entry = Entry(1u);  // { COUNT
    held[i] = f32(i);
    workgroupBarrier();
    for (var at = i; at < COUNT; at += SIZE) {
        values[at] = factor() * held[i] + f32(SHIFT) + f32(entry.shift);
    }
}
"""
VALUES = {"SIZE": 16.0, "COUNT": 40.0, "SHIFT": -3.0, "FACTOR": 0.5, "NEGATES": 1.0}
BINDINGS = (Binding("values", Access.READ_WRITE),)


def kernel(**values: float) -> Kernel:
    overrides = tuple(sorted((VALUES | values).items()))
    return Kernel("t", SOURCE, "main", overrides, BINDINGS, general=True)


def expected(size: int, count: int, shift: int, factor: float, *, negates: bool):
    held = np.arange(count) % size
    scaled = (-factor if negates else factor) * held + shift + 1
    return np.concatenate([scaled, np.full(64 - count, 7.0)]).astype(np.float32)


def test_only_constants_that_the_module_needs_before_it_runs_stay():
    shared_kernel = shared(kernel())
    assert shared_kernel.kernel.overrides == (
        ("SIZE", 16.0),
    )  # of an array, a workgroup, and of DOUBLE
    assert shared_kernel.kernel.bindings == (*BINDINGS, Binding(NAME, Access.UNIFORM))
    assert "override UNUSED" in shared_kernel.kernel.source  # no value was given
    assert shared_kernel.constants == struct.pack("<IifI", 40, -3, 0.5, 1)


def test_kernels_share_a_shader_if_they_differ_only_in_the_others():
    first = shared(kernel()).kernel
    assert shared(kernel(COUNT=41, SHIFT=5, FACTOR=2.0, NEGATES=0.0)).kernel == first
    assert shared(kernel(SIZE=32)).kernel != first
    assert shared(replace(kernel(), trusted=True)).kernel != first


def test_a_kernel_without_such_constants_stays_as_it_is():
    whole = Kernel("t", "@compute @workgroup_size(1) fn main() {}", "main", (), BINDINGS)
    assert shared(whole).kernel is whole
    assert shared(whole).constants == b""


@pytest.mark.parametrize(
    ("shares", "general", "count"), [(False, True, 3), (True, False, 3), (True, True, 2)]
)
def test_a_shared_shader_computes_with_the_constants_of_each_kernel(shares, general, count):
    cases = [(16, 40, -3, 0.5, True), (16, 64, 9, 3.0, False), (32, 33, 0, 1.0, True)]
    opened = new_device()
    opened._pipelines._shares = shares
    before = opened.counters.copy()
    try:
        for size, values, shift, factor, negates in cases:
            first = kernel(
                SIZE=size, COUNT=values, SHIFT=shift, FACTOR=factor, NEGATES=float(negates)
            )
            first = replace(first, general=general)
            memory = BufferSlice(opened.create_buffer("values", 256), 0, 256)
            opened.write(memory, np.full(64, 7.0, np.float32))
            opened.submit([opened.bind(Dispatch(first, (memory,), Work(), "t"))], 1)
            result = opened.read(memory).view(np.float32)
            np.testing.assert_array_equal(
                result, expected(size, values, shift, factor, negates=negates)
            )
        created = opened.counters.since(before).pipeline_creates
        assert created == count
    finally:
        opened.close()


@pytest.mark.thorough
def test_a_model_computes_the_same_with_constants_of_either_kind(tmp_path, rng):
    """Software adapters run most of these tests, and GPUs compile what only this one runs."""
    package = write_random_package(tmp_path, llama_manifest(), rng)
    ids, outputs = rng.integers(0, 50, 40).tolist(), []
    for shares in (False, True):
        device = new_device()
        device._pipelines._shares = shares
        backend = GpuBackend(package, context=64, device=device)
        try:
            prompt = backend.logits(ids, 0)
            outputs.append(np.concatenate([prompt, backend.logits([7], len(ids))]))
        finally:
            backend.close()
            device.close()
    assert relative_error(outputs[1], outputs[0]) < 1e-5
    assert relative_error(outputs[1][1], outputs[0][0]) > 1e-2  # the control: other logits are far
