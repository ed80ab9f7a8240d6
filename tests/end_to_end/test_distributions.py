"""The published archives hold every file that is needed and no other, and need no torch."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest
import rdrr
from support.commands import ROOT

pytest.importorskip("hatchling", reason="`make setup` installs the build backend")

COMPONENTS = ("format", "device", "manifests", "converter", "runtime", "api")
DATA = (".wgsl", ".html", ".css", ".js", ".json", ".txt", ".typed")
"""Suffixes of files besides Python modules that the packages, or type checkers, read."""

_BUILD = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both archives with the pinned backend, and return their folder."""
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
        return {
            getmember.name.partition("/")[2]
            for getmember in archive.getmembers()
            if getmember.isfile()
        }


def sources(component: str) -> set[str]:
    """Return the paths, in the wheel, of a component's files that must be installed."""
    (package,) = (ROOT / component).glob("rdrr*/__init__.py")
    root = package.parent.parent
    return {
        path.relative_to(root).as_posix()
        for path in package.parent.rglob("*")
        if path.suffix in (".py", *DATA) and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_module_and_shader_is_in_both_archives(wheel, sdist, component):
    expected = sources(component)
    assert expected <= wheel
    assert {f"{component}/{name}" for name in expected} <= sdist


def test_shaders_and_type_markers_are_among_the_files():
    every = set().union(*map(sources, COMPONENTS))
    assert sum(name.endswith(".wgsl") for name in every) > 50
    assert sum(name.endswith("py.typed") for name in every) == len(COMPONENTS)


def test_the_wheel_has_no_other_files(wheel):
    every = set().union(*map(sources, COMPONENTS))
    others = {name for name in wheel - every if ".dist-info/" not in name}
    assert not others


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_no_archive_has_tests_or_weights(kind, request):
    names = request.getfixturevalue(kind)
    parts = {part for name in names for part in PurePosixPath(name).parts}
    assert not parts & {"tests", "shared", "examples", "benchmarks", ".ci", ".git", "__pycache__"}
    assert not {name for name in names if name.endswith((".safetensors", ".gguf", ".bin", ".pyc"))}


def test_the_licence_is_in_both_archives(wheel, sdist):
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= sdist


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def required(metadata: Message, extra: str = "") -> set[str]:
    """Return the names of the packages that the wheel, or one of its extras, requires."""
    lines = [line.partition(";") for line in metadata.get_all("Requires-Dist", [])]
    chosen = [need for need, _, marker in lines if marker.strip() == extra]
    return {re.split(r"[\[<>=!~ ]", need)[0] for need in chosen}


def test_the_wheel_alone_needs_no_heavy_or_optional_package(metadata):
    requirements = required(metadata)
    assert {"numpy", "safetensors", "gguf", "wgpu"} <= requirements
    assert not requirements & {
        "torch",
        "ray",
        "llguidance",
        "s3fs",
        "gcsfs",
        "lm-eval",
        "starlette",
        "uvicorn",
        "wgpudawn",
        "transformers",
    }


@pytest.mark.parametrize(
    ("extra", "package"),
    [
        ("torch", "torch"),
        ("remote", "s3fs"),
        ("s3", "s3fs"),
        ("gs", "gcsfs"),
        ("http", "fsspec"),
        ("ray", "ray"),
        ("grammar", "llguidance"),
        ("dawn", "wgpudawn"),
        ("lm-eval", "lm-eval"),
        ("serve", "starlette"),
    ],
)
def test_an_extra_installs_its_package(metadata, extra, package):
    assert extra in metadata.get_all("Provides-Extra", [])
    assert package in required(metadata, f"extra == '{extra}'")


def test_the_archives_and_the_citation_state_the_version_of_the_package(metadata):
    assert metadata["Version"] == rdrr.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {rdrr.__version__}\n" in citation


@pytest.mark.thorough
def test_a_wheel_built_from_the_source_archive_is_the_same(built, wheel, tmp_path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    code = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        assert {name for name in archive.namelist() if not name.endswith("/")} == wheel
