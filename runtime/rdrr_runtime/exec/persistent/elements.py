"""Accesses to the arrays of a unit, rewritten for the variables of a module.

This works on the text of functions, in the style of this package's WGSL; it is no parser.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rdrr_runtime.exec.persistent.declarations import Declaration, UnlinkableError

_ASSIGNED = re.compile(r"\s*=(?!=)")
_CHANGED = re.compile(r"\s*(?:(?:[-+*/%&|^]|<<|>>)=|\+\+|--)|(?:\.\w+|\[[^\]]*\])+\s*=(?!=)")


class Element(ABC):
    """How a module accesses the elements of an array.

    Attributes:
        offset: What to add to an index; empty for nothing.
    """

    offset: str

    def at(self, index: str) -> str:
        """Return the index among all elements of the module."""
        return f"{self.offset} + ({index})" if self.offset else index

    @abstractmethod
    def read(self, index: str) -> str:
        """Return the expression of an element."""

    @abstractmethod
    def write(self, index: str, value: str) -> str:
        """Return the statement that sets an element, without its semicolon."""


@dataclass(frozen=True)
class StoredElement(Element):
    """How a module accesses the elements of an array in storage or workgroup memory.

    Attributes:
        variable: The module's variable.
        offset: See `Element`.
    """

    variable: str
    offset: str = ""

    def read(self, index: str) -> str:
        """See `Element.read`."""
        return f"{self.variable}[{self.at(index)}]"

    def write(self, index: str, value: str) -> str:
        """See `Element.write`."""
        return f"{self.variable}[{self.at(index)}] = {value}"


@dataclass(frozen=True)
class CastElement(StoredElement):
    """How a module accesses the elements of an array that lies over words of another type.

    Attributes:
        type: WGSL type of an element.
        stored: WGSL type of the elements of the variable.
    """

    type: str = "vec4<f32>"
    stored: str = "vec4<u32>"

    def read(self, index: str) -> str:
        """See `Element.read`."""
        return f"bitcast<{self.type}>({super().read(index)})"

    def write(self, index: str, value: str) -> str:
        """See `Element.write`."""
        return super().write(index, f"bitcast<{self.stored}>({value})")


@dataclass(frozen=True)
class HandedElement(Element):
    """How a module accesses the elements of a value that is handed over, see handover.wgsl.

    Attributes:
        offset: See `Element`.
        type: WGSL type of an element.
        width: Words of an element.
    """

    offset: str
    type: str = "u32"
    width: int = 1

    def look(self, at: str) -> str:
        """Return the expression of what an element is now, given its index among the words."""
        return f"seen{self.width}({at})"

    def read(self, index: str) -> str:
        """Return the expression that waits for an element."""
        return self.value(f"taken{self.width}({self.at(index)})")

    def write(self, index: str, value: str) -> str:
        """Return the statement that hands an element over, without its semicolon."""
        words = value if self.type == self._words else f"bitcast<{self._words}>({value})"
        return f"put{self.width}({self.at(index)}, {words})"

    def value(self, words: str) -> str:
        """Return the element that consists of some words."""
        return words if self.type == self._words else f"bitcast<{self.type}>({words})"

    @property
    def _words(self) -> str:
        return "u32" if self.width == 1 else f"vec{self.width}<u32>"


def has_reads(declared: Sequence[Declaration], name: str) -> bool:
    """Return whether functions read elements of an array.

    Raises:
        UnlinkableError: The array is used in another way than by an element.
    """
    texts = (declaration.text for declaration in declared if declaration.kind == "fn")
    return any(assigned is None for text in texts for *_, assigned in _accesses(text, name))


def is_changed_in_place(declared: Sequence[Declaration], name: str) -> bool:
    """Return whether functions change elements of an array, or parts of them, in place.

    Raises:
        UnlinkableError: The array is used in another way than by an element.
    """
    texts = (declaration.text for declaration in declared if declaration.kind == "fn")
    return any(
        assigned is None and _CHANGED.match(text, close + 1)
        for text in texts
        for _, close, assigned in _accesses(text, name)
    )


def rewritten(text: str, name: str, read: Element, write: Element) -> str:
    """Return a text with each access to an array replaced by the module's.

    Args:
        text: Text of a function.
        name: The array.
        read: How to read it.
        write: How to write it.

    Raises:
        UnlinkableError: The array is used in another way than by reading or setting an element.
    """
    parts: list[str] = []
    end = 0
    for start, close, assigned in _accesses(text, name):
        if start < end:  # inside an access that has been rewritten
            continue
        index = rewritten(text[start + len(name) + 1 : close], name, read, write)
        parts.append(text[end:start])
        if assigned is not None:
            end = text.index(";", close)
            value = rewritten(text[assigned.end() : end], name, read, write)
            parts.append(write.write(index, value.strip()))
            continue
        is_plain = all(type(element) is StoredElement for element in (read, write))
        if not is_plain and _CHANGED.match(text, close + 1):
            raise UnlinkableError(f"{name} is changed in place")
        parts.append(read.read(index))
        end = close + 1
    return "".join((*parts, text[end:]))


def closing(text: str, at: int) -> int:
    """Return the position of the bracket that closes the one at `at`.

    Raises:
        UnlinkableError: There is none.
    """
    depth = 0
    for position in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise UnlinkableError("an index has no end")


def _accesses(text: str, name: str) -> Iterator[tuple[int, int, re.Match[str] | None]]:
    """Yield where each access to an array begins, where its index ends, and the `=` behind it."""
    for access in re.finditer(rf"(?<![.\w]){re.escape(name)}\b", text):
        if text[access.end() : access.end() + 1] != "[":
            raise UnlinkableError(f"{name} is used as a whole")
        close = closing(text, access.end())
        yield access.start(), close, _ASSIGNED.match(text, close + 1)
