"""No module imports another that imports it back, directly or through further modules."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest
from support.commands import environment

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINTER = PROJECT["tool"]["importlinter"]
CONTRACT = next(
    contract for contract in LINTER["contracts"] if contract["type"] == "acyclic_siblings"
)


def lint(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run lint-imports with our kind of contract on a package `planted` made of these files."""
    for name, text in files.items():
        (folder / "planted" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "planted" / name).write_text(text, encoding="utf-8")
    (folder / "linter.toml").write_text(
        '[tool.importlinter]\nroot_package = "planted"\n'
        f'[[tool.importlinter.contracts]]\nname = "{CONTRACT["name"]}"\n'
        f'type = "{CONTRACT["type"]}"\nancestors = ["planted"]\n',
        encoding="utf-8",
    )
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", "linter.toml"],
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted import one\n"


FILES = {"__init__.py": "", "one.py": "from planted import two\n"}


def test_the_contract_is_kept_without_a_cycle(tmp_path):
    straight = lint(tmp_path / "straight", {**FILES, "two.py": ""})
    assert (straight.returncode, "KEPT" in straight.stdout) == (0, True), straight.stdout


@pytest.mark.parametrize(
    "back",
    ["from planted import one\n", "def f():\n    from planted import one\n", TYPED],
    ids=["at the top", "in a function", "for types only"],
)
def test_the_contract_breaks_on_a_planted_cycle(tmp_path, back):
    cycle = lint(tmp_path / "cycle", {**FILES, "two.py": back})
    assert (cycle.returncode, "BROKEN" in cycle.stdout) == (1, True), cycle.stdout


def test_the_contract_breaks_on_two_packages_that_import_each_other(tmp_path):
    files = {"__init__.py": "", "a/__init__.py": "", "a/one.py": "", "b/__init__.py": ""}
    files |= {"a/two.py": "from planted.b import four\n", "b/four.py": ""}
    assert lint(tmp_path / "straight", files).returncode == 0
    assert lint(tmp_path / "cycle", {**files, "b/three.py": "import planted.a.one\n"}).returncode


def test_the_contract_covers_every_component():
    assert sorted(CONTRACT["ancestors"]) == sorted(LINTER["root_packages"])


def cycles_with_parents(graph: grimp.ImportGraph) -> list[tuple[str, str]]:
    """Return pairs of a package and a module in it that import each other.

    The contract does not cover these, since it compares packages and not a package with its parts.
    """
    return [
        (package, module)
        for package in sorted(graph.modules)
        for module in graph.find_modules_directly_imported_by(package)
        if module.startswith(f"{package}.") and graph.find_shortest_chain(module, package)
    ]


def test_no_module_imports_a_package_that_imports_the_module():
    graph = grimp.build_graph(*LINTER["root_packages"], cache_dir=None)
    assert cycles_with_parents(graph) == []
    graph.add_import(importer="rdrr_format.codecs.q4_k", imported="rdrr_format.codecs")
    assert ("rdrr_format.codecs", "rdrr_format.codecs.q4_k") in cycles_with_parents(graph)
