"""What is published: the wheel and the source archive hold all that is needed, and no more."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from support.commands import ROOT

pytest.importorskip("hatchling", reason="`make setup` installs the build backend")

COMPONENTS = ("format", "device", "manifests", "converter", "runtime", "api")
DATA = (".wgsl", ".html", ".typed")
"""Endings of files besides Python's that the packages read when they run, or that checkers read."""

_BUILD = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both archives, built by the pinned backend."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", _BUILD, str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def sdist(built: Path) -> set[str]:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        return {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}


def sources(component: str) -> set[str]:
    """Files of a component's package that must be installed, by their paths in the package."""
    (package,) = (ROOT / component).glob("rdrr*/__init__.py")
    root = package.parent.parent
    return {
        path.relative_to(root).as_posix()
        for path in package.parent.rglob("*")
        if path.suffix in (".py", *DATA) and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_source_and_shader_is_in_both(wheel, sdist, component):
    expected = sources(component)
    assert expected <= wheel
    assert {f"{component}/{name}" for name in expected} <= sdist


def test_shaders_and_marks_of_types_are_among_them():
    every = set().union(*map(sources, COMPONENTS))
    assert sum(name.endswith(".wgsl") for name in every) > 50
    assert sum(name.endswith("py.typed") for name in every) == len(COMPONENTS)


def test_the_wheel_holds_nothing_else(wheel):
    every = set().union(*map(sources, COMPONENTS))
    others = {name for name in wheel - every if ".dist-info/" not in name}
    assert not others


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_no_tests_no_weights_and_nothing_shared_is_in_it(kind, request):
    names = request.getfixturevalue(kind)
    parts = {part for name in names for part in PurePosixPath(name).parts}
    assert not parts & {"tests", "shared", "examples", "benchmarks", ".ci", ".git", "__pycache__"}
    assert not {name for name in names if name.endswith((".safetensors", ".gguf", ".bin", ".pyc"))}


def test_the_licence_is_in_both(wheel, sdist):
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= sdist


def test_a_wheel_built_from_the_source_archive_is_the_same(built, wheel, tmp_path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    code = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        assert {name for name in archive.namelist() if not name.endswith("/")} == wheel
