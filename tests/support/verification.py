"""Changing and loading packages whose shards are verified."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import rdrr as front
from rdrr_format.file_state import CLOCK_TICK_NS

PROMPT = "And it came to pass"
FLIPPED = 400


def let_times_settle() -> None:
    time.sleep(2 * CLOCK_TICK_NS / 1e9)


def shards(folder: Path) -> list[Path]:
    shards = sorted(folder.glob("shard_*"))
    assert len(shards) > 2
    return shards


def flip(path: Path, rng: np.random.Generator, count: int = FLIPPED) -> None:
    """Flip bits in some bytes of a file in place."""
    data = np.fromfile(path, np.uint8)
    where = rng.choice(len(data), count, replace=False)
    data[where] ^= rng.integers(1, 256, count, dtype=np.uint8)
    with path.open("r+b") as file:
        file.write(data.tobytes())


def edit_manifest(folder: Path, **changes) -> dict:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return manifest


def state_another_hash(folder: Path) -> None:
    """Change the declared hash of the first shard, so that bytes loaded with `none` stay sound."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["shards"][0]["hash"] = "5" * 64
    edit_manifest(folder, shards=manifest["shards"])


def load(folder, **options) -> str:
    """Load a package on the CPU and return the text that it generates."""
    with front.load(folder, **({"backend": "cpu", "context": 32} | options)) as model:
        return model.generate(PROMPT, max_tokens=3).read()


def load_as_it_is(folder, backend: str = "cpu") -> None:
    """Load changed bytes, from which a model may compute nonsense or NaN."""
    with front.load(folder, backend=backend, context=32, verify="none") as model:
        assert model.info.name == backend
