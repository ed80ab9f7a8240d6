"""No component imports a module of benchmarks/, which is not in the wheel."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from support.code_lines import statements
from support.commands import ROOT


def own_names(folder: Path) -> set[str]:
    """Return the names under which the modules and packages of a folder are imported."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}


def imports(source: str, names: set[str]) -> Iterator[str]:
    """Yield the top-level names that a module imports, if it has one of the names anywhere."""
    if not re.search(rf"\b({'|'.join(names)})\b", source):
        return
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_no_module_of_the_wheel_imports_a_benchmark():
    names = own_names(ROOT / "benchmarks")
    assert {"published", "peers", "_runners"} <= names
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert not [package for package in packages if package.startswith("benchmarks")]
    modules = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert len(modules) > 100
    imported = {
        path.name: names & set(imports(path.read_text(encoding="utf-8"), names)) for path in modules
    }
    assert not {name: those for name, those in imported.items() if those}
    # The control: a benchmark does import other benchmarks.
    script = (ROOT / "benchmarks" / "bench_modes.py").read_text(encoding="utf-8")
    assert names & set(imports(script, names))
