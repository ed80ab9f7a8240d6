"""Count lines of code: those that are not blank, and not only a comment or part of a docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement that hold others."""

SLASHES = {".wgsl", ".ts", ".js", ".mjs", ".css"}
"""Endings of files whose comments begin with two slashes; blocks of comments count as code."""

BUILT = {"node_modules", "build", "dist"}
"""Folders of packages that npm installs, and of what the build in `web` writes."""


def code_lines(folder: Path) -> int:
    """Return the lines of code of all modules and shaders of a folder, those below it included."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return sum(_lines_of(path) for path in files if not _is_built(path.relative_to(folder)))


def _is_built(path: Path) -> bool:
    """Whether a file of a component is made from others; `rdrr/browser` is built in `web`."""
    return not BUILT.isdisjoint(path.parts) or path.parts[:2] == ("rdrr", "browser")


def _lines_of(path: Path) -> int:
    if path.suffix == ".py":
        return python_lines(path.read_text(encoding="utf-8"))
    if path.suffix in SLASHES:
        lines = path.read_text(encoding="utf-8").splitlines()
        return sum(not line.strip().startswith(("//", "/*")) for line in lines if line.strip())
    return 0


def python_lines(source: str) -> int:
    """Return the lines of code of a module; a comment has a line of its own."""
    lines = enumerate(source.splitlines(), start=1)
    code = {number for number, line in lines if line.strip() and not line.strip().startswith("#")}
    return len(code - _docstrings(ast.parse(source)))


def _docstrings(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of all docstrings."""
    first = [
        node.body[0] for node in statements(tree) if isinstance(node, DOCUMENTED) and node.body
    ]
    return {
        line
        for statement in first
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements, the nested ones too.

    `ast.walk` takes three times as long, because most nodes are parts of expressions.
    """
    rest = [tree]
    while rest:
        node = rest.pop()
        yield node
        for field in BLOCKS:
            rest += getattr(node, field, ())
