"""Insertion of waits for values that are handed over, in front of where the values are used.

A phase loads values in statements of the form `let v = x[i];` or `let v = f32(x[i]);`. In a module
such a statement only looks at the words; the wait stands in front of the statement that uses `v`,
so that further looks and other work come in between. If `v` occurs only once, it is waited for
within that statement, so a branch that is not taken waits for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rdrr_runtime.exec.persistent.elements import Element, HandedElement, closing

_LOAD = re.compile(r"(?P<space> *)let (?P<name>\w+) = (?:(?P<type>[\w<>]+)\()?(?P<array>\w+)\[")


@dataclass
class _Load:
    """A statement that loads an element.

    Attributes:
        space: Its indentation.
        name: What it declares.
        type: The type to which it converts the element; empty for none.
        element: How the element is accessed.
        index: Its index.
        depth: Number of enclosing blocks.
        at: Number of the line in front of which the statement with the value begins.
    """

    space: str
    name: str
    type: str
    element: HandedElement
    index: str
    depth: int
    at: int = 0

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the name as a word of its own."""
        return re.compile(rf"(?<![.\w]){self.name}\b")

    @property
    def look(self) -> tuple[str, str]:
        """The lines that look at the words."""
        at, seen = f"{self.name}_at", f"{self.name}_seen"
        return (
            f"{self.space}let {at} = {self.element.at(self.index)};",
            f"{self.space}let {seen} = {self.element.look(at)};",
        )

    @property
    def value(self) -> str:
        """The expression that waits for the words."""
        words = f"full{self.element.width}({self.name}_seen, {self.name}_at)"
        value = self.element.value(words)
        return f"{self.type}({value})" if self.type else value


def with_waits(text: str, reads: Mapping[str, Element]) -> str:
    """Return the text of a function in which values are waited for where they are used.

    Args:
        text: The function, without comments.
        reads: How the module reads each array.
    """
    lines: list[str] = []
    pending: list[_Load] = []
    depth = 0
    for text_line in text.split("\n"):
        line = text_line
        pending = [earlier for earlier in pending if earlier.depth <= depth]
        if _ends_statement(lines) and not line.lstrip().startswith("}"):
            for earlier in pending:
                earlier.at = len(lines) if earlier.depth == depth else earlier.at
        for earlier in [earlier for earlier in pending if earlier.pattern.search(line)]:
            pending.remove(earlier)
            if len(earlier.pattern.findall(text)) == 2:  # the declaration and this
                line = earlier.pattern.sub(earlier.value, line)
                continue
            lines.insert(earlier.at, f"{earlier.space}let {earlier.name} = {earlier.value};")
            for other in pending:
                other.at += other.at >= earlier.at
        load = _load(line, reads, depth)
        lines += [line] if load is None else load.look
        if load is not None:
            load.at = len(lines)
            pending.append(load)
        depth += line.count("{") - line.count("}")
    return "\n".join(lines)


def _load(line: str, reads: Mapping[str, Element], depth: int) -> _Load | None:
    """Return the parts of a line that loads an element of a value that is handed over."""
    head = _LOAD.match(line)
    element = None if head is None else reads.get(head["array"])
    if head is None or not isinstance(element, HandedElement):
        return None
    close = closing(line, head.end() - 1) if line.count("[") == line.count("]") else -1
    if close < 0 or line[close + 1 :] != (");" if head["type"] else ";"):
        return None
    index = line[head.end() : close]
    return _Load(head["space"], head["name"], head["type"] or "", element, index, depth)


def _ends_statement(lines: Sequence[str]) -> bool:
    """Return whether the line behind these begins a statement."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last.endswith((";", "{", "}"))
