"""Text files are read and written in UTF-8, whatever the locale of the user."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support.commands import COMPONENTS, ROOT

POSITIONAL = {"read_text": 0, "write_text": 1}
"""Arguments of a call that leaves the encoding to the locale; `read_text(path)` is our own."""


def calls_without_encoding(source: str) -> Iterator[int]:
    """Yield the lines of calls that read or write text in the encoding of the locale."""
    if not any(name in source for name in POSITIONAL):
        return  # most files, which need not be parsed
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_stated = any(keyword.arg == "encoding" for keyword in node.keywords)
            if POSITIONAL.get(node.func.attr) == len(node.args) and not is_stated:
                yield node.lineno


def test_every_text_file_is_read_and_written_with_a_stated_encoding():
    paths = [
        path
        for folder in (*COMPONENTS, "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(paths) > 500
    left_to_the_locale = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in paths
        for line in calls_without_encoding(path.read_text(encoding="utf-8"))
    ]
    assert left_to_the_locale == []


def test_a_call_without_an_encoding_is_seen():
    assert [*calls_without_encoding('path.read_text()\npath.write_text("x", newline="")')] == [1, 2]
    assert [*calls_without_encoding('path.read_text(encoding="utf-8")\nread_text(path)')] == []
