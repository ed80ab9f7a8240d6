"""WGSL text: loading, rendering, and reading the bindings that it declares.

Templates choose types and snippets only (weight dtype, activation type, subgroups or not);
numbers such as widths, eps and workgroup sizes are WGSL `override` constants, so that one
rendered text serves every shape. A rendered shader's own declarations are the single truth about
its bindings: the explicit bind group layout is read from them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2


class Access(StrEnum):
    """How a kernel uses a storage buffer; the values are WebGPU's buffer binding types."""

    READ = "read-only-storage"
    READ_WRITE = "storage"


class Target(StrEnum):
    """A WGSL compiler: naga is that of wgpu, Tint that of Dawn and Chromium."""

    NAGA = "naga"
    TINT = "tint"


@dataclass(frozen=True)
class Binding:
    """One storage buffer that a kernel expects."""

    name: str
    access: Access


_STORAGE = re.compile(r"^var<storage,\s*(read_write|read)>\s*(\w+)\s*:", re.MULTILINE)
_OVERRIDE = re.compile(r"^override\s+(\w+)\s*:\s*\w+\s*(=?)", re.MULTILINE)
_COMMENT = re.compile(r"//.*")
_SUBGROUPS = re.compile(r"\bsubgroup[A-Z]\w*\(|@builtin\((subgroup_\w+|num_subgroups)\)")


@dataclass(frozen=True)
class ShaderFolder:
    """WGSL templates that lie in a Python package, each beside the snippets it includes.

    Attributes:
        package: Name of the package, e.g. `rdrr_runtime.phases`.
    """

    package: str

    def render(self, name: str, **variables: Hashable) -> str:
        """Return the text of a template with its variables filled in.

        Variables are plain values or frozen dataclasses. `VALUE`, the type of activations, is
        `f32` where it is left out; a text with f16 enables it. Any other variable that the
        template uses and the caller leaves out is an error of jinja2.
        """
        given: dict[str, Hashable] = {"VALUE": "f32", **variables}
        text = _render(self.package, name, tuple(sorted(given.items(), key=itemgetter(0))))
        return text if given["VALUE"] == "f32" else f"enable {given['VALUE']};\n{text}"

    def digest(self) -> str:
        """Return a digest of all sources: what was measured of one version holds for no other."""
        return _digest(self.package)


@cache
def _environment(package: str) -> jinja2.Environment:
    import jinja2

    def load(name: str) -> str | None:
        path = files(package).joinpath(name)
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _render(package: str, name: str, variables: tuple[tuple[str, Hashable], ...]) -> str:
    return _environment(package).get_template(name).render(dict(variables))


@cache
def _digest(package: str) -> str:
    found = sha256()
    folder = files(package)
    for place in (folder, folder.joinpath("snippets")):
        for one in sorted(place.iterdir(), key=lambda entry: entry.name):
            if one.name.endswith((".wgsl", ".py")):
                found.update(one.name.encode() + b"\0" + one.read_bytes())
    return found.hexdigest()


def for_target(source: str, target: Target) -> str:
    """Return the text of a rendered shader as a compiler accepts it.

    Tint wants subgroups to be enabled; naga refuses the line, and gets what was rendered.
    """
    if target is Target.TINT and _SUBGROUPS.search(_COMMENT.sub("", source)):
        return f"enable subgroups;\n{source}"
    return source


@cache
def storage_bindings(source: str) -> tuple[Binding, ...]:
    """Return the storage buffers that a text declares without numbers, in order."""
    return tuple(
        Binding(name, Access.READ if access == "read" else Access.READ_WRITE)
        for access, name in _STORAGE.findall(source)
    )


def with_binding_numbers(source: str) -> str:
    """Return a text whose storage buffers have bindings 0, 1, 2... of group 0, in order."""
    numbers = count()
    return _STORAGE.sub(lambda one: f"@group(0) @binding({next(numbers)}) {one[0]}", source)


@cache
def overrides(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the typed override constants of a text: all of them, and those without a default."""
    found = _OVERRIDE.findall(source)
    return frozenset(name for name, _ in found), frozenset(name for name, has in found if not has)
