"""Tests of the WGSL files as text: headers, directives and bindings."""

from __future__ import annotations

import re

import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Access, Binding, WgslCompiler, for_compiler, storage_bindings
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import FOLDER as SHADERS
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.rows.copy import Copy, CopyRow
from support.shader_text import SHADERS_OF_PHASES, bindings

X, Y = (BufferSlice(None, offset, 64) for offset in (0, 64))


def copy_phase(groups: int) -> Phase:
    return Phase(Copy(threads=64, words=4, groups=groups), {"x": X, "y": Y}, Work(groups), "t")


@pytest.mark.parametrize("file", SHADERS_OF_PHASES, ids=lambda file: file.stem)
def test_a_shader_opens_with_its_formula_and_explains_every_binding(file) -> None:
    text = file.read_text(encoding="utf-8")
    header = "".join(
        line for line in text.splitlines(keepends=True)[:30] if line.startswith(("//", "{%"))
    )
    assert "=" in header or "becomes" in header
    for bound in re.findall(r"var<storage[^>]*>\s*(\w+)", text):
        assert re.search(rf"\b{bound}\b", header), bound


@pytest.mark.parametrize("file", SHADERS_OF_PHASES, ids=lambda file: file.stem)
def test_a_shader_enables_nothing(file) -> None:
    text = file.read_text(encoding="utf-8")
    assert "enable " not in text


@pytest.mark.parametrize(("subgroups", "enabled"), [(True, "enable subgroups;\n"), (False, "")])
def test_subgroups_are_enabled_for_tint_alone(subgroups, enabled) -> None:
    source = SHADERS.render("snippets/reduce_sum.wgsl", SUBGROUPS=subgroups)
    assert for_compiler(source, WgslCompiler.TINT) == enabled + source
    assert for_compiler(source, WgslCompiler.NAGA) == source


def test_bindings_are_read_from_the_rendered_text() -> None:
    declared = (
        Binding("current", Access.READ),
        Binding("x", Access.READ),
        Binding("y", Access.READ_WRITE),
    )
    record = CopyRow(threads=64, value="f32", width=4, several=False)
    assert storage_bindings(record.source) == declared
    buffers = {"y": Y, "x": X, "current": X}
    launched = as_dispatch(Phase(record, buffers, Work(1), "t"))
    assert bindings(launched.kernel.source) == launched.kernel.bindings == declared
    assert launched.buffers == (X, X, Y)


def test_gaps_in_binding_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not numbered"):
        bindings("@group(0) @binding(1) var<storage, read> x: array<f32>;")


def test_kernels_with_equal_sources_and_constants_are_equal() -> None:
    first, second = (as_dispatch(copy_phase(1)).kernel for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != as_dispatch(copy_phase(2)).kernel
