"""Packages, checkpoints and a hub for the tests of the commands."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rdrr_device.device import Device, open_device
from support.fake_hub import Hub, fake_hub


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """A device of the best adapter, whose kernels the tests of models share."""
    opened = open_device()
    yield opened
    opened.close()


@pytest.fixture
def package(shallow_package: Path, tmp_path: Path) -> Path:
    """A copy of the package that a test may damage."""
    return Path(shutil.copytree(shallow_package, tmp_path / "package"))


@pytest.fixture
def checkpoint(shallow_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint that a test may damage."""
    return Path(shutil.copytree(shallow_checkpoint, tmp_path / "checkpoint"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A small hub that runs in this process, with no repository."""
    with fake_hub() as running:
        yield running


@pytest.fixture
def hub_here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, to which the client in this process is pointed, with an empty cache.

    The client reads most of the variables of `variables` once, when it is imported.
    """
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    return hub


@pytest.fixture
def variables(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """Environment variables that point the hub's client to that hub and to an empty cache."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",  # the fake hub supports only Git LFS
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": "hf_token",
    }
