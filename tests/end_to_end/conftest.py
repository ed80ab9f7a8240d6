"""Packages and checkpoints that the commands are tried on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import EXAMPLE
from support.fake_hub import Hub, fake_hub


@pytest.fixture
def package(made_package: Path, tmp_path: Path) -> Path:
    """A copy of the package, to be spoiled."""
    return Path(shutil.copytree(made_package, tmp_path / "package"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the bundled checkpoint, to be spoiled."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "checkpoint"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub of our own, with nothing on it."""
    with fake_hub() as running:
        yield running


@pytest.fixture
def variables(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """What makes the hub's client talk to that hub, with an empty cache."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",  # the small hub knows the older protocol only
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": "hf_token",
    }
