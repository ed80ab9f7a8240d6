"""A package in several shards, and a verification cache of each test's own."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.commands import rdrr
from support.hashing import count_hashing
from support.verification import let_times_settle


@pytest.fixture(autouse=True)
def cache_file(tmp_path, monkeypatch) -> Path:
    """Use a verification cache of this test's own; return the path of its file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rdrr" / "verified.json"


@pytest.fixture(autouse=True)
def hashed(monkeypatch) -> Counter[str]:
    """How often each local file was hashed."""
    return count_hashing(monkeypatch)


@pytest.fixture(scope="session")
def sharded_package(shallow_checkpoint, tmp_path_factory) -> Path:
    """Convert the shallow checkpoint to several shards; tests must not change this package."""
    folder = tmp_path_factory.mktemp("shards") / "small-llama"
    stored = ("--quantize", "f16", "--shard-size", "1MiB", "--quiet")
    rdrr("convert", shallow_checkpoint, folder, *stored, code=0)
    return folder


@pytest.fixture
def package(sharded_package, tmp_path) -> Path:
    """Copy a package that tests may change, old enough for its modification times to be trusted."""
    folder = tmp_path / "package"
    shutil.copytree(sharded_package, folder)
    let_times_settle()
    return folder
