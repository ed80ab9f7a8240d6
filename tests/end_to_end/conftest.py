"""Packages and checkpoints that the commands are tried on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.commands import EXAMPLE, rdrr


@pytest.fixture(scope="session")
def made_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled checkpoint, converted as the demo does; not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "small-llama"
    done = rdrr("convert", EXAMPLE, folder, "--transpose-weights", "--fuse-gate-up", "--quiet")
    assert done.code == 0, done.err
    assert done.out == ""
    return folder


@pytest.fixture
def package(made_package: Path, tmp_path: Path) -> Path:
    """A copy of the package, to be spoiled."""
    return Path(shutil.copytree(made_package, tmp_path / "package"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the bundled checkpoint, to be spoiled."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "checkpoint"))
