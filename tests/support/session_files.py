"""Session files of a model that does not exist."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rdrr._session import restored_sampling
from rdrr_runtime.text.session_file import SavedSession, read_session, write_session

VOCABULARY = 16
IDENTITY = {"package": "1", "kvDtype": "f16"}
PARTS = {
    "keys.0": np.ones((1, 2, 2), np.float16).view(np.uint8),
    "values.0": np.zeros((1, 2, 2), np.float16).view(np.uint8),
    "state.0": np.ones(2, np.float32).view(np.uint8),
}


def content_of(sampling: Mapping[str, object]) -> bytes:
    """Return the bytes of a sound session."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session"
        write_session(path, SavedSession([5, 3, 1], 2, PARTS, sampling), IDENTITY)
        return path.read_bytes()


def read_whole(path: Path) -> SavedSession:
    """Read a session and its sampling parameters."""
    saved = read_session(path, IDENTITY)
    restored_sampling(saved.sampling, VOCABULARY, path)
    return saved
