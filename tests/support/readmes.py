"""What the README of a component names, compared with what is in the folder of the component.

A README names files and folders in two ways: as code, `folder/module.py` or `folder/`, and as
entries of a tree in a block without a language, where an indented entry lies in the folder above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([\w./*-]+)`")
_MODULE = re.compile(r"`(rdrr_\w+)\.(\w+)[.\w]*`")
_ENTRY = re.compile(r"[\w.*-][\w./*-]*(\.(py|wgsl)|/),?$")
_FOLDERS = re.compile(r"\w+(/\w+)+$")
_PLACEHOLDER = re.compile(r"\.|-|.*[A-Z]{3}")


@dataclass(frozen=True)
class Entry:
    """One entry of a tree.

    Attributes:
        path: The file or folder, below the outermost entry that contains it.
        text: What the tree says about it.
    """

    path: PurePosixPath
    text: str


def readme_faults(text: str, component: Path) -> list[str]:
    """Return what a README names that does not exist, and the packages that it leaves out."""
    there, roots = _content(component), _roots(component)
    prose = _BLOCK.sub("", text)
    entries = [entry for block in _trees(text) for entry in _entries(block)]
    faults, named = [], set()
    for name in [*_names(prose, roots), *(str(entry.path) for entry in entries)]:
        matches = {path for path in there if path.match(name)}
        named |= matches
        if not matches and not any(component.parent.glob(name)):
            faults.append(f"names {name}, which does not exist")
    for package, module in _MODULE.findall(prose):
        if not [*component.parent.glob(f"*/{package}/{module}*")]:
            faults.append(f"names {package}.{module}, which does not exist")
    for entry in entries:
        words = set(re.findall(r"\w+", entry.text))
        folders = {path for path in there if path.parent.match(str(entry.path))}
        named |= {path for path in folders if path.name in words}
    named |= {parent for path in named for parent in path.parents}
    missing = sorted(str(path) for path in _packages(there, roots) if path not in named)
    return faults + [f"does not name the folder {path}" for path in missing]


def _content(component: Path) -> set[PurePosixPath]:
    """Return the files and folders of a component, relative to the folder that contains it."""
    files = {
        PurePosixPath(path.relative_to(component.parent).as_posix())
        for path in component.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return files | {parent for path in files for parent in path.parents}


def _packages(there: set[PurePosixPath], roots: list[Path]) -> set[PurePosixPath]:
    """Return the folders that a README has to name: packages within the component's package.

    Folders of shaders and templates alone belong to the package that contains them.
    """
    packages = {path.parent for path in there if path.suffix == ".py"}
    return packages - {PurePosixPath(root.relative_to(roots[0].parent)) for root in roots}


def _names(prose: str, roots: list[Path]) -> Iterator[str]:
    """Yield the paths that are named as code outside of blocks."""
    for name in _CODE.findall(prose):
        if _PLACEHOLDER.match(name):
            continue
        first = name.split("/")[0]
        known = any((root / first).is_dir() for root in (roots[0].parent, *roots))
        if _ENTRY.match(name) or (known and _FOLDERS.match(name)):
            yield name.rstrip("/")


def _roots(component: Path) -> list[Path]:
    """Return the folders from which a README counts its paths, the component first."""
    return [component, *component.glob("rdrr*")]


def _trees(text: str) -> Iterator[str]:
    """Yield the blocks without a language."""
    yield from (block for language, block in _BLOCK.findall(text) if not language)


def _entries(block: str) -> Iterator[Entry]:
    """Yield the entries of a tree; lines without a name continue the text of the entry before."""
    folders: list[tuple[int, PurePosixPath]] = []
    for indent, line in _joined(block):
        words = line.split()
        names = [*takewhile(_ENTRY.match, words)]
        while folders and folders[-1][0] >= indent:
            folders.pop()
        parent = folders[-1][1] if folders else PurePosixPath()
        text = " ".join(words[len(names) :])
        yield from (Entry(parent / name.strip(",/"), text) for name in names)
        folders.append((indent, parent / names[-1].strip(",/")))


def _joined(block: str) -> Iterator[tuple[int, str]]:
    """Yield the indentation and the text of each entry, with the lines that continue it."""
    lines: list[tuple[int, str]] = []
    for line in block.splitlines():
        text = line.strip()
        if text and _ENTRY.match(text.split()[0]):
            lines.append((len(line) - len(line.lstrip()), text))
        elif lines:
            indent, before = lines.pop()
            lines.append((indent, f"{before} {text}"))
    yield from lines
