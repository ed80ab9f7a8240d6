"""Local names say what a thing is: few are words that fit anything."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
from support.commands import ROOT

VAGUE = {"one", "found", "own", "made", "wanted", "kept", "drawn", "told"}
MOST = 0.01
"""Part of the local names that may be vague."""


def local_names(source: str) -> Iterator[str]:
    """Yield the arguments of each function and the variables that it assigns, each of them once."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names = (name for child in ast.walk(node) if (name := _assigned(child)))
            yield from dict.fromkeys(names)


def _assigned(node: ast.AST) -> str | None:
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


@pytest.mark.parametrize(
    "component",
    ["api", "benchmarks", "converter", "device", "format", "manifests", "runtime", "tests"],
)
def test_few_local_names_are_vague(component):
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / component).rglob("*.py"))
    names = Counter(name for source in sources for name in local_names(source))
    assert sum(names.values()) > 500
    vague = {name: names[name] for name in VAGUE if names[name]}
    assert sum(vague.values()) < MOST * sum(names.values()), vague


def test_arguments_and_variables_of_a_function_count_once():
    source = (
        "kept = 1\ndef f(one, /, *told):\n    own = one\n    own, x = told\n    return own.made\n"
    )
    assert [*local_names(source)] == ["one", "told", "own", "x"]
