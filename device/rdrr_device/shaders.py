"""WGSL sources: load and render templates, and read the bindings that a shader declares.

Templates select only types and snippets (weight dtype, activation type, subgroups or not). Numbers
such as widths, eps and workgroup sizes are WGSL `override` constants, so that one rendered source
serves every shape. The declarations in the rendered source are the only statement of a shader's
bindings: the explicit bind group layout is derived from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from hashlib import sha256
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING

from rdrr_device.rendered_sources import RenderedSources, rendered_sources

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import jinja2


class Access(StrEnum):
    """How a kernel accesses a buffer; the values are WebGPU's buffer binding types."""

    READ = "read-only-storage"
    READ_WRITE = "storage"
    UNIFORM = "uniform"


class WgslCompiler(StrEnum):
    """A WGSL compiler: naga is used by wgpu, Tint by Dawn and Chromium."""

    NAGA = "naga"
    TINT = "tint"


@dataclass(frozen=True)
class Binding:
    """One buffer that a kernel declares."""

    name: str
    access: Access


ENABLE_SUBGROUPS = "enable subgroups;\n"
_STORAGE = re.compile(r"^var<storage,\s*(read_write|read)>\s*(\w+)\s*:", re.MULTILINE)
_OVERRIDE = re.compile(r"^override\s+(\w+)\s*:\s*\w+\s*(=?)", re.MULTILINE)
_COMMENT = re.compile(r"//.*")
_COHERENT = re.compile(r"^@coherent\n", re.MULTILINE)
_MATRICES = re.compile(r"\bsubgroup_matrix_\w+<")
ENABLE_MATRICES = """enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
"""
_SUBGROUPS = re.compile(r"\bsubgroup[A-Z]\w*\(|@builtin\((subgroup_\w+|num_subgroups)\)")


@dataclass(frozen=True)
class ShaderFolder:
    """A Python package that contains WGSL templates and the snippets that they include.

    Attributes:
        package: Name of the package, e.g. `rdrr_runtime.phases`.
        constants: Variables with the same value in all templates.
    """

    package: str
    constants: tuple[tuple[str, Hashable], ...] = ()

    def render(self, name: str, **variables: Hashable) -> str:
        """Return the source of a template with its variables filled in.

        Variables are plain values or frozen dataclasses. `VALUE`, the type of activations,
        defaults to `f32`; with `f16` an `enable` directive is added. If the template uses another
        variable that the caller omits, jinja2 raises an error. A snippet that several others
        include wraps its declarations in `{% if is_first("NAME") %}`, so they are rendered once.
        """
        given: dict[str, Hashable] = {"VALUE": "f32", **dict(self.constants), **variables}
        text = _render(self.package, name, tuple(sorted(given.items(), key=itemgetter(0))))
        return text if given["VALUE"] == "f32" else f"enable {given['VALUE']};\n{text}"

    def digest(self) -> str:
        """Return a digest of the shaders and modules, which identifies the measured version."""
        return _digest(self.package)


@cache
def _environment(package: str) -> jinja2.Environment:
    import jinja2

    folder = _files(package)

    def load(name: str) -> str | None:
        path = folder.joinpath(name)
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
    def rendered() -> str:
        template = _environment(package).get_template(name)
        return template.render(dict(variables), is_first=_first_uses())

    return _kept(package).of(repr((name, variables)), rendered)


@cache
def _kept(package: str) -> RenderedSources:
    return rendered_sources(package)


def _files(package: str) -> Traversable:
    from importlib.resources import files

    return files(package)


def _first_uses() -> Callable[[str], bool]:
    """Return a function that tells whether it is called with a name for the first time."""
    used: set[str] = set()

    def is_first(name: str) -> bool:
        before = len(used)
        used.add(name)
        return len(used) > before

    return is_first


@cache
def _digest(package: str) -> str:
    hasher = sha256()
    for path, file in sorted(_sources(_files(package)).items()):
        hasher.update(path.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()


def _sources(folder: Traversable) -> dict[str, Traversable]:
    """Return the shaders and modules of a folder and of those in it, by their paths."""
    sources: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            inner = _sources(entry)
            sources |= {f"{entry.name}/{path}": file for path, file in inner.items()}
        elif entry.name.endswith((".wgsl", ".py")):
            sources[entry.name] = entry
    return sources


def without_comments(source: str) -> str:
    """Return a source without its comments."""
    return _COMMENT.sub("", source)


def compact(source: str) -> str:
    """Return a source without comments, indentation and empty lines: half as large compressed."""
    lines = (line.strip() for line in without_comments(source).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


@cache  # the kernels of a program share their sources
def for_compiler(source: str, compiler: WgslCompiler) -> str:
    """Return a rendered source in the form that a compiler accepts; templates render naga's form.

    Tint requires `enable subgroups;` where subgroup operations are used; naga rejects that line.
    Matrices of subgroups need an extension too. Tint cannot prove either that all threads of a
    subgroup multiply together, since the loops around end by constants of the pipeline.

    Only modules of passes in one dispatch declare buffers `@coherent`, which Tint does not know.
    Tint cannot prove either that all threads reach their barriers, which naga does not ask: what
    decides is the same in all threads, but it is loaded from memory that other phases write. So
    the analysis is switched off in these modules; that is an extension of Dawn outside of browsers.
    """
    source = source.removeprefix(ENABLE_SUBGROUPS)
    if compiler is WgslCompiler.NAGA:
        return source
    text, count = _COHERENT.subn("", source)
    enabled = "enable chromium_disable_uniformity_analysis;\n" if count else ""
    if _MATRICES.search(text):
        enabled += ENABLE_MATRICES
    if _SUBGROUPS.search(without_comments(text)):
        enabled += ENABLE_SUBGROUPS
    return enabled + text


@cache
def storage_bindings(source: str) -> tuple[Binding, ...]:
    """Return the storage buffers that a source declares, in order, before bindings are numbered."""
    return tuple(
        Binding(name, Access.READ if access == "read" else Access.READ_WRITE)
        for access, name in _STORAGE.findall(source)
    )


def with_binding_numbers(source: str) -> str:
    """Return a source whose storage buffers are numbered, in order, as bindings of group 0."""
    numbers = count()
    return _STORAGE.sub(lambda match: f"@group(0) @binding({next(numbers)}) {match[0]}", source)


@cache
def overrides(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of a source's override constants: all, and those without a default."""
    pairs = _OVERRIDE.findall(source)
    return frozenset(name for name, _ in pairs), frozenset(name for name, has in pairs if not has)
