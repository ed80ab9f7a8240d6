"""No component has more lines of code than its budget, and a budget says what a component has.

To raise a budget is a line in the diff, whose reason stands in the commit.
"""

from __future__ import annotations

import tomllib

import pytest
from support.code_lines import code_lines, python_lines
from support.commands import ROOT

BUDGETS = tomllib.loads((ROOT / "tests/budgets.toml").read_text(encoding="utf-8"))["code-lines"]
SLACK = 100
"""Lines that a component may be below its budget, so that what was saved stays saved."""

SOURCE = '''"""A docstring
of two lines."""

import os  # a remark does not count twice


class A:
    """Another."""

    # A comment.
    text = """not a
docstring"""

    def f(self):
        "A third."
        return os.sep
'''


@pytest.mark.parametrize("components", BUDGETS)
def test_a_component_stays_within_its_budget_of_lines(components):
    lines = sum(code_lines(ROOT / component) for component in components.split(" and "))
    budget = BUDGETS[components]
    assert lines <= budget, f"{components}: {lines} lines of code, {budget} allowed"
    assert lines > budget - SLACK, f"{components}: only {lines} lines, so lower the budget"


def test_every_component_has_a_budget():
    folders = {path.parent.name for path in ROOT.glob("[!.]*/README.md")} | {"tests"}
    budgeted = {name for components in BUDGETS for name in components.split(" and ")}
    assert folders == budgeted


def test_comments_docstrings_and_blank_lines_are_no_code():
    assert python_lines(SOURCE) == 6
    assert python_lines(SOURCE.replace("text =", "text = other =")) == 6
    assert python_lines(SOURCE + "print()\n") == 7
