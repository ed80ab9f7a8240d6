"""One shader for kernels that differ only in numbers, on adapters that compile slowly.

A driver compiles a shader anew for each set of override constants. On a GPU that is wanted: it
unrolls loops of known length. A software adapter compiles the tiled product for a second or two,
and most matrices of a model differ in their shape. There the constants become members of a uniform
buffer, except those that the module needs before it runs: for sizes of arrays and workgroups, and
for other constants. Only kernels that say so (`Kernel.general`) are shared: `matvec` decodes five
times slower without loops of known length.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from rdrr_device.kernels import Kernel
from rdrr_device.shaders import Access, Binding, without_comments

NAME = "launch_constants"
"""The uniform buffer in the shader."""

ALIGNMENT = 16
"""The size of a uniform buffer is a multiple of this."""

_DECLARATION = re.compile(r"^override\s+(\w+)\s*:\s*(u32|i32|f32|bool)\s*(=[^;]*)?;", re.MULTILINE)
_FUNCTION = re.compile(r"\bfn\s+\w+[^{]*\{")
_WORD = re.compile(r"\w+")
# WGSL does not allow a bool in a uniform buffer, so it is a word there.
_PACKED: Mapping[str, str] = {"u32": "<I", "i32": "<i", "f32": "<f", "bool": "<I"}


@dataclass(frozen=True)
class SharedKernel:
    """A kernel whose shader serves other kernels too.

    Attributes:
        kernel: The kernel; its last binding is the uniform buffer, if there is one.
        constants: Contents of the uniform buffer; empty if there is none.
    """

    kernel: Kernel
    constants: bytes


@dataclass(frozen=True)
class _Split:
    """A source whose constants have been moved.

    Attributes:
        source: The source that reads them from the uniform buffer.
        moved: Names and types of the members, in order.
    """

    source: str
    moved: tuple[tuple[str, str], ...]


def shared(kernel: Kernel) -> SharedKernel:
    """Return a kernel that computes the same and has as few override constants as possible."""
    values = dict(kernel.overrides)
    split = _split(kernel.source, frozenset(values), len(kernel.bindings))
    if not split.moved:
        return SharedKernel(kernel, b"")
    packed = [
        struct.pack(_PACKED[kind], values[name] if kind == "f32" else int(values[name]))
        for name, kind in split.moved
    ]
    data = b"".join(packed)
    moved = {name for name, _ in split.moved}
    reduced = replace(
        kernel,
        source=split.source,
        overrides=tuple(override for override in kernel.overrides if override[0] not in moved),
        bindings=(*kernel.bindings, Binding(NAME, Access.UNIFORM)),
    )
    return SharedKernel(reduced, data + bytes(-len(data) % ALIGNMENT))


@cache
def _split(source: str, given: frozenset[str], binding: int) -> _Split:
    """Move the constants `given` of a source to a uniform buffer with this binding number."""
    text = without_comments(source)
    needed = set(_WORD.findall(_DECLARATION.sub(_initializer, _outside_functions(text))))
    moved = tuple(
        (match[1], match[2])
        for match in _DECLARATION.finditer(text)
        if match[1] in given and match[1] not in needed
    )
    if not moved:
        return _Split(source, ())
    kinds = dict(moved)
    text = _DECLARATION.sub(lambda match: "" if match[1] in kinds else match[0], text)
    # Not behind a dot, where the same word would be the member of a struct.
    names = re.compile(rf"(?<![\w.])({'|'.join(kinds)})(?!\w)")
    text = names.sub(lambda match: _read(match[1], kinds[match[1]]), text)
    members = "\n".join(f"    {name}: {kind.replace('bool', 'u32')}," for name, kind in moved)
    declared = f"@group(0) @binding({binding}) var<uniform> {NAME}: LaunchConstants;"
    return _Split(f"{text}\nstruct LaunchConstants {{\n{members}\n}}\n{declared}\n", moved)


def _initializer(declaration: re.Match[str]) -> str:
    """Return what a declaration of a constant needs from others."""
    return declaration[3] or ""


def _read(name: str, kind: str) -> str:
    member = f"{NAME}.{name}"
    return f"({member} != 0u)" if kind == "bool" else member


def _outside_functions(text: str) -> str:
    """Return a source without the bodies of its functions."""
    outside, at = [], 0
    while (match := _FUNCTION.search(text, at)) is not None:
        outside.append(text[at : match.end()])
        depth, at = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
    return "".join((*outside, text[at:]))
