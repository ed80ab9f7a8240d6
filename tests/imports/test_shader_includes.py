"""Shaders include snippets along the arrows on which the modules beside them import."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PHASES = ROOT / "runtime" / "rdrr_runtime" / "phases"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
(CONTRACT,) = (
    contract
    for contract in PROJECT["tool"]["importlinter"]["contracts"]
    if contract.get("containers") == ["rdrr_runtime.phases"]
)
DEPTHS = {
    package: depth
    for depth, layer in enumerate(CONTRACT["layers"])
    for package in layer.split(" | ")
}
PACKAGES = sorted({file.relative_to(PHASES).parts[0] for file in PHASES.glob("*/**/*.wgsl")})
INCLUDE = re.compile(r'\{%-? include "(?:(\w+)/)?snippets/')


def wrong_includes(package: str, text: str) -> list[str]:
    """Return the packages from which a shader of a package must not include a snippet."""
    included = {name for name in INCLUDE.findall(text) if name not in ("", package)}
    return sorted(name for name in included if DEPTHS[name] <= DEPTHS.get(package, len(DEPTHS)))


@pytest.mark.parametrize("package", PACKAGES)
def test_snippets_are_included_from_the_package_or_from_lower_ones(package):
    for file in (PHASES / package).rglob("*.wgsl"):
        assert wrong_includes(package, file.read_text(encoding="utf-8")) == [], file.name


def test_an_include_against_the_arrows_is_noticed():
    text = '{% include "products/snippets/down.wgsl" %}\n{% include "snippets/value.wgsl" %}'
    assert wrong_includes("products", text) == wrong_includes("experts", text) == []
    assert wrong_includes("rows", text) == wrong_includes("cache", text) == ["products"]
