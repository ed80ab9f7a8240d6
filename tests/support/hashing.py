"""Counting how often a load hashes each file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rdrr_manifests import loading


def count_hashing(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return a counter, by file name, of the local files that loads hash from now on."""
    times: Counter[str] = Counter()
    hash_file = loading.hash_file

    def counting(path: Path, *arguments: Any) -> Any:
        times[path.name] += 1
        return hash_file(path, *arguments)

    monkeypatch.setattr(loading, "hash_file", counting)
    return times
