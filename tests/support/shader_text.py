"""Parse what a generated WGSL module declares and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import rdrr_runtime.phases
from rdrr_device.shaders import Access, Binding

# `launch.wgsl` beside their folders is the template that wraps them into shader modules.
SHADERS_OF_PHASES = sorted(
    file
    for file in Path(rdrr_runtime.phases.__file__).parent.glob("*/*.wgsl")
    if file.parent.name != "snippets"
)

_DECLARATION = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var<storage,\s*(read_write|read)>\s*(\w+)\s*:"
)


def bindings(source: str) -> tuple[Binding, ...]:
    """Return the storage buffers that a module declares, by binding number.

    Raises:
        ValueError: The numbers are not 0, 1, 2...
    """
    members = sorted(
        (int(number), Binding(name, Access.READ if access == "read" else Access.READ_WRITE))
        for number, access, name in _DECLARATION.findall(source)
    )
    if [number for number, _ in members] != list(range(len(members))):
        raise ValueError(f"bindings are not numbered 0, 1, 2...: {members}")
    return tuple(binding for _, binding in members)


Type = str | dict[str, str]
"""A type as it is spelled in WGSL, or the fields of a structure."""

_SHARED = re.compile(r"var<(?:workgroup|storage,\s*read_write)>\s*(\w+)\s*:\s*([^;]+);")
_ALIAS = re.compile(r"\balias\s+(\w+)\s*=\s*([^;]+);")
_STRUCT = re.compile(r"\bstruct\s+(\w+)\s*\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*((?:[^,<]|<[^>]*(?:<[^>]*>[^>]*)*>)+)")
_ACCESSED = re.compile(r"\.(\w+)")
_ASSIGNED = re.compile(r"\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)")


def component_writes(source: str) -> tuple[str, ...]:
    """Return the writes to single components of vectors that threads share.

    A compiler may turn such a write into one of the whole vector, so two threads that write
    different components of it race. A pointer to such a vector, through which a component could be
    written, counts as well.

    Args:
        source: A module without template syntax.

    Returns:
        The left-hand sides of the assignments, e.g. `tile[i / 4u][i % 4u]`.
    """
    text = re.sub(r"//[^\n]*", "", source)
    types = {**dict(_ALIAS.findall(text)), **_structs(text)}
    return tuple(
        text[start:end]
        for name, kind in _SHARED.findall(text)
        for start, end, accessors in _uses(text, name)
        for selected in [_selected(types, kind, accessors)]
        if (selected == "component" and _ASSIGNED.match(text, end))
        or (selected == "vector" and text[start - 1] == "&")
    )


def _structs(text: str) -> dict[str, dict[str, str]]:
    return {name: dict(_FIELD.findall(body)) for name, body in _STRUCT.findall(text)}


def _uses(text: str, name: str) -> Iterator[tuple[int, int, list[str]]]:
    """Yield start, end and accessors (`[` or the name of a field) of each use of a variable."""
    for use in re.finditer(rf"(?<![\w.]){name}\b", text):
        end, accessors = use.end(), []
        while (field := _ACCESSED.match(text, end)) or text[end] == "[":
            accessors.append(field[1] if field else "[")
            end = field.end() if field else _closing(text, end)
        yield use.start(), end, accessors


def _closing(text: str, at: int) -> int:
    """Return the end of the part in brackets that begins at `at`."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if not depth:
            return end + 1
    raise ValueError("a bracket is not closed")


def _selected(types: Mapping[str, Type], kind: Type, accessors: Sequence[str]) -> str:
    """Return whether accessors select a `vector`, a `component` of one, or something `other`."""
    while isinstance(kind, str) and kind.strip() in types:
        kind = types[kind.strip()]
    if isinstance(kind, str) and kind.strip().startswith("vec"):
        return "component" if accessors else "vector"
    if not accessors:
        return "other"
    if isinstance(kind, str):
        element = re.sub(r",[^<>]*$", "", kind.strip().removeprefix("array<").removesuffix(">"))
        return _selected(types, element, accessors[1:])
    return _selected(types, kind[accessors[0]], accessors[1:])
