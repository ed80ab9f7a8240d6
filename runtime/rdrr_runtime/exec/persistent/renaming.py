"""The text of a phase's WGSL with names of its own, so that it can share a module with others.

All module-scope names get a suffix, override constants become constants with their values, and
accesses to arrays go to the module's variables. Structs of which storage buffers consist keep their
names, since the buffers are shared.
"""

from __future__ import annotations

import re
from functools import cached_property
from math import isfinite

from rdrr_runtime.exec.persistent.declarations import Declaration, Names, UnlinkableError
from rdrr_runtime.exec.persistent.elements import Element, rewritten
from rdrr_runtime.exec.persistent.wait_insertion import with_waits


class Renaming:
    """The renaming of one unit's declarations.

    Args:
        number: Suffix of the names.
        declared: Declarations of the shader.
        names: Its constants and types.

    Attributes:
        declared: Declarations of the shader.
        plain: The module's variable for each storage buffer that is no array.
        reads: How to read each array in storage or workgroup memory.
        writes: How to write it, if that differs.
    """

    def __init__(self, number: int, declared: tuple[Declaration, ...], names: Names) -> None:
        self.declared = declared
        self.plain: dict[str, str] = {}
        self.reads: dict[str, Element] = {}
        self.writes: dict[str, Element] = {}
        self._number, self._names = number, names

    @cached_property
    def shared_structs(self) -> tuple[Declaration, ...]:
        """The structs of which storage buffers consist; all units have them under one name."""
        structs = {
            declaration.name: declaration
            for declaration in self.declared
            if declaration.kind == "struct"
        }
        needed = " ".join(
            declaration.type for declaration in self.declared if declaration.kind == "storage"
        )
        shared: dict[str, Declaration] = {}
        for _ in structs:  # a struct may contain others
            for name, declaration in structs.items():
                if name not in shared and re.search(rf"\b{name}\b", needed):
                    shared[name] = declaration
                    needed += declaration.text
        return tuple(shared.values())

    @cached_property
    def own(self) -> tuple[Declaration, ...]:
        """The declarations of which each unit has its own copy."""
        shared = set(self.shared_structs)
        variables = ("storage", "workgroup")
        return tuple(
            declaration
            for declaration in self.declared
            if declaration.kind not in variables and declaration not in shared
        )

    def text(self, declaration: Declaration) -> str:
        """Return a declaration with the names and constants of the module.

        Raises:
            UnlinkableError: It uses an array in a way that cannot be rewritten.
        """
        if declaration.kind == "override":
            type_ = f": {declaration.type}" if declaration.type else ""
            return f"const {declaration.name}_{self._number}{type_} = {self._literal(declaration)};"
        if declaration.kind == "struct":
            return self._struct(declaration)
        if declaration.kind == "fn":
            self._check_shadowing(declaration)
        text = with_waits(declaration.text, self.reads)
        for name, read in self.reads.items():
            text = rewritten(text, name, read, self.writes.get(name, read))
        return self.renamed(text)

    def renamed(self, text: str) -> str:
        """Return a text with the suffix on every name of the unit."""
        return self._own_names.sub(
            lambda match: self.plain.get(match[0], f"{match[0]}_{self._number}"), text
        )

    @cached_property
    def _own_names(self) -> re.Pattern[str]:
        shared = {declaration.name for declaration in self.shared_structs}
        names = {declaration.name for declaration in self.declared} - shared - set(self.reads)
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        return re.compile(rf"(?<![.\w])(?:{'|'.join(longest_first)})\b")

    def _struct(self, declaration: Declaration) -> str:
        """Return a struct with its name and the types of its members renamed, but no member."""
        head, _, body = declaration.text.partition("{")
        members = (member.partition(":") for member in body.rstrip("}, \n").split(",\n"))
        texts = [f"{name}:{self.renamed(type_)}," for name, _, type_ in members]
        return "\n".join((f"{self.renamed(head)}{{", *texts, "}"))

    def _literal(self, declaration: Declaration) -> str:
        """Return the value of an override constant as WGSL."""
        value = self._names.constants.get(declaration.name)
        if value is None:
            return self.renamed(declaration.value or "")
        if not isfinite(value):
            raise UnlinkableError(f"the constant {declaration.name} is not finite")
        if declaration.type == "bool":
            return "true" if value else "false"
        if declaration.type == "f32":
            return f"f32({float(value)!r})"
        return f"{int(value)}{'u' if declaration.type == 'u32' else 'i'}"

    def _check_shadowing(self, declaration: Declaration) -> None:
        """Refuse a function in which a local name hides an array that would be rewritten."""
        for name in self.reads:
            if re.search(rf"\b(?:let|var|const)\s+{name}\b|[(,]\s*{name}\s*:", declaration.text):
                raise UnlinkableError(f"{name} is also a local name of {declaration.name}")
