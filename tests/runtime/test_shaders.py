"""The WGSL files themselves."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from rdrr_device.kernels import Grid, dispatch
from rdrr_device.shaders import Access, Binding, Target, bindings, for_target
from rdrr_runtime.phases.shaders import FOLDER as SHADERS
from rdrr_runtime.phases.shaders import kernel

FOLDER = files("rdrr_runtime.phases")
FILES = sorted(one.name for one in FOLDER.iterdir() if one.name.endswith(".wgsl"))


@pytest.mark.parametrize("name", FILES)
def test_a_shader_opens_with_its_formula_and_explains_every_binding(name) -> None:
    text = FOLDER.joinpath(name).read_text(encoding="utf-8")
    header = "".join(
        line for line in text.splitlines(keepends=True)[:30] if line.startswith(("//", "{%"))
    )
    assert "=" in header or "becomes" in header
    for bound in re.findall(r"var<storage[^>]*>\s*(\w+)", text):
        assert re.search(rf"\b{bound}\b", header), bound


@pytest.mark.parametrize("name", FILES)
def test_a_shader_enables_nothing(name) -> None:
    text = FOLDER.joinpath(name).read_text(encoding="utf-8")
    assert "enable " not in text


@pytest.mark.parametrize(("subgroups", "enabled"), [(True, "enable subgroups;\n"), (False, "")])
def test_subgroups_are_enabled_for_tint_alone(subgroups, enabled) -> None:
    source = SHADERS.render("rmsnorm.wgsl", MODE="out", SUBGROUPS=subgroups)
    assert for_target(source, Target.TINT) == enabled + source
    assert for_target(source, Target.NAGA) == source


def test_bindings_are_read_from_the_rendered_text() -> None:
    source = SHADERS.render("copy_row.wgsl")
    assert bindings(source) == (
        Binding("current", Access.READ),
        Binding("x", Access.READ),
        Binding("y", Access.READ_WRITE),
    )


def test_gaps_in_binding_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not numbered"):
        bindings("@group(0) @binding(1) var<storage, read> x: array<f32>;")


def test_an_unknown_constant_or_buffer_is_refused() -> None:
    what = kernel("copy_row", constants={"WIDTH": 4})
    with pytest.raises(ValueError, match="WIDHT"):
        kernel("copy_row", constants={"WIDHT": 4})
    with pytest.raises(ValueError, match="binds"):
        dispatch(what, {}, Grid(), "t")


def test_equal_recipes_are_one_key() -> None:
    first, second = (kernel("copy_row", constants={"WIDTH": 4}) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != kernel("copy_row", constants={"WIDTH": 8})
