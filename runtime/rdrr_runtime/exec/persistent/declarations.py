"""The module-scope declarations of a phase's WGSL, so that several phases can share one module.

This reads only WGSL of this package, which keeps to its own style; it is no general parser. What it
does not understand it refuses, and the phase is then launched by itself.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

_COMMENT = re.compile(r"//[^\n]*")
_HEAD = re.compile(
    r"(?:var<(?P<space>[a-z_, ]+)>|(?P<kind>override|const|fn|struct|alias))\s+(?P<name>\w+)"
)
_NUMBER = re.compile(r"\b(\d+)[ui]\b")
_MEMBER = re.compile(r"(\w+)\s*:\s*([\w<>]+)\s*,?")

SCALAR_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "u32": 4, "i32": 4, "f16": 2})
_VECTOR = re.compile(r"vec([234])<(\w+)>")

_OPERATORS: Mapping[type, Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.floordiv,
        ast.Mod: operator.mod,
    }
)


class UnlinkableError(Exception):
    """A phase cannot be joined with others; the message says why."""


@dataclass(frozen=True)
class Declaration:
    """One declaration at module scope.

    Attributes:
        kind: `storage`, `workgroup` or `private` for variables, else WGSL's keyword.
        name: Declared name.
        text: The whole declaration, without comments.
        type: Type of a variable, alias, constant or override; empty for others.
        value: Value of a constant or override as WGSL; None if it has none.
    """

    kind: str
    name: str
    text: str
    type: str = ""
    value: str | None = None


@cache
def declarations(source: str) -> tuple[Declaration, ...]:
    """Return the declarations of a shader, in order.

    Raises:
        UnlinkableError: One is of an unknown form.
    """
    return tuple(_declaration(text) for text in _statements(_COMMENT.sub("", source)))


def _statements(text: str) -> Iterator[str]:
    """Yield the declarations of a text without comments; `enable` lines are left out."""
    depth, first = 0, 0
    for at, character in enumerate(text):
        if character in "{}":
            depth += 1 if character == "{" else -1
        if depth == 0 and character in ";}":
            statement = text[first : at + 1].strip()
            first = at + 1
            if statement and statement != ";" and not statement.startswith("enable "):
                yield statement


def _declaration(text: str) -> Declaration:
    head = _HEAD.match(text)
    if head is None:
        raise UnlinkableError(f"cannot read `{text[:40]}`")
    kind, name = head["kind"], head["name"]
    if kind in ("fn", "struct"):
        return Declaration(kind, name, text)
    rest = text[head.end() :].strip().rstrip(";")
    if kind == "alias":
        return Declaration(kind, name, text, type=rest.lstrip("= "))
    declared, _, value = rest.partition("=")
    type_ = declared.strip().removeprefix(":").strip()
    if kind is not None:
        return Declaration(kind, name, text, type_, value.strip() or None)
    space = head["space"].partition(",")[0]
    return Declaration(space, name, text, type_)


@dataclass(frozen=True)
class Array:
    """An array type: its element type with aliases resolved, and its size if it has one.

    Attributes:
        element: WGSL type of an element.
        count: Number of elements as a WGSL expression; None for a storage array.
    """

    element: str
    count: str | None = None


class Names:
    """The constants and types of one shader.

    Args:
        declared: Declarations of the shader.
        constants: Values of its override constants.

    Attributes:
        constants: Values of its override constants.
    """

    def __init__(
        self, declared: tuple[Declaration, ...], constants: Mapping[str, float | int]
    ) -> None:
        self._types = {
            declaration.name: declaration.type
            for declaration in declared
            if declaration.kind == "alias"
        }
        self._structs = {
            declaration.name: declaration.text
            for declaration in declared
            if declaration.kind == "struct"
        }
        self.constants = dict(constants)
        self._values = {
            declaration.name: declaration.value
            for declaration in declared
            if declaration.kind in ("const", "override") and declaration.value is not None
        }

    def resolved(self, type_: str) -> str:
        """Return a type with its alias resolved, which may be an alias of another."""
        while type_ in self._types:
            type_ = self._types[type_]
        return type_

    def array(self, type_: str) -> Array | None:
        """Return the parts of an array type; None for a type that is no array."""
        type_ = self.resolved(type_)
        if not type_.startswith("array<"):
            return None
        inner = type_.removeprefix("array<")[:-1]
        depth = 0
        for at, character in enumerate(inner):
            depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(character, 0)
            if character == "," and depth == 0:
                return Array(self.resolved(inner[:at].strip()), inner[at + 1 :].strip())
        return Array(self.resolved(inner.strip()))

    def size_of(self, type_: str) -> int:
        """Return the bytes of an element of a storage array.

        Raises:
            UnlinkableError: The type has another form than those of this package's buffers.
        """
        type_ = self.resolved(type_)
        atomic = type_.removeprefix("atomic<").removesuffix(">") if "atomic<" in type_ else type_
        if atomic in SCALAR_BYTES:
            return SCALAR_BYTES[atomic]
        vector = _VECTOR.fullmatch(type_)
        if vector is not None:
            width = 4 if vector[1] == "3" else int(vector[1])  # a vec3 is aligned like a vec4
            return width * SCALAR_BYTES[vector[2]]
        if type_ in self._structs:
            body = self._structs[type_].partition("{")[2].rstrip("} \n")
            sizes = [self.size_of(member) for _, member in _MEMBER.findall(body)]
            if set(sizes) == {4}:
                return sum(sizes)
        raise UnlinkableError(f"the size of {type_} is not known")

    def evaluate(self, expression: str) -> int:
        """Return the value of a constant expression of unsigned integers.

        Raises:
            UnlinkableError: It contains more than numbers, constants and arithmetic.
        """
        try:
            tree = ast.parse(_NUMBER.sub(r"\1", expression), mode="eval")
        except SyntaxError as error:
            raise UnlinkableError(f"cannot compute {expression}") from error
        return self._value(tree.body)

    def _value(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._value(node.left), self._value(node.right)
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.Name) and node.id in self.constants:
            return int(self.constants[node.id])
        if isinstance(node, ast.Name) and node.id in self._values:
            return self.evaluate(self._values[node.id])
        raise UnlinkableError(f"cannot compute {ast.unparse(node)}")
