"""Local names say what a thing is: few are words that fit anything."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from types import CodeType

import pytest
from support.commands import ROOT

VAGUE = {"one", "found", "own", "made", "wanted", "kept", "drawn", "told"}
MOST = 0.01
"""Part of the local names that may be vague."""


def local_names(source: str) -> Iterator[str]:
    """Yield the arguments and variables of each function, each of them once."""
    for code in _codes(compile(source, "<source>", "exec", dont_inherit=True)):
        if code.co_flags & inspect.CO_NEWLOCALS:  # which modules and bodies of classes do not have
            names = dict.fromkeys((*code.co_varnames, *code.co_cellvars))
            # An argument without a name holds what a comprehension iterates over.
            yield from (name for name in names if name.isidentifier())


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@pytest.mark.parametrize(
    "component",
    [
        *("api", "benchmarks", "converter", "device", "format", "manifests", "runtime"),
        pytest.param("tests", marks=pytest.mark.thorough),
    ],
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
