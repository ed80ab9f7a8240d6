"""Files in the user's cache are only a cache: whatever they hold, the defaults are used instead."""

from __future__ import annotations

import json
import os

import pytest
from rdrr._tuned import BOUNDS, profile_path, read_profile, write_profile
from rdrr_device.adapters import AdapterInfo
from support.costs import MIB, cheap

INFO = AdapterInfo("Test GPU", "Vulkan", "DiscreteGPU", "1.2", frozenset(), {}, False)
ENTRIES = {"norm rms 64": {"params": {"threads": 64}, "default_us": 2.0, "us": 1.0}}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_profile(INFO, ENTRIES)
    assert path == profile_path(INFO)
    assert read_profile(INFO).entries == ENTRIES  # the control
    return path


def spoiled(path, **changes: object) -> bytes:
    return json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}).encode()


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"format": 1}, "not a tuned profile"),
        ({"adapter": "x"}, "another adapter"),
        ({"entries": []}, "damaged"),
        ({"entries": {"a": 1}}, "damaged"),
        ({"entries": {"a": {"params": {"threads": 64.0}}}}, "damaged"),
        ({"entries": {"a": {"params": {"threads": True}}}}, "damaged"),
        ({"entries": {"a": {"params": [64]}}}, "damaged"),
        ({"entries": {"a": {"params": {"threads": 10**30}}}}, "cannot be read"),
        ({"entries": {"a": {"params": {}, "us": float("nan")}}}, "cannot be read"),
    ],
)
def test_a_profile_of_other_types_is_ignored_with_a_note(path, changes, note):
    path.write_bytes(spoiled(path, **changes))
    profile = read_profile(INFO)
    assert not profile.entries
    assert note in profile.note
    assert str(path) in profile.remark


@pytest.mark.parametrize(
    "content", [b"[" * 10**6, b"\xff\xfe", b'"\\ud83d"', b"[0" + b",0" * 2**20]
)
def test_a_profile_that_would_cost_much_is_ignored(path, content):
    path.write_bytes(content)
    with cheap(2 * len(content) + 4 * MIB):
        assert read_profile(INFO).note == "it cannot be read"


def test_a_profile_without_end_is_ignored(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with cheap(MIB):
        assert read_profile(INFO).note == "it cannot be read"
    assert BOUNDS.size < 1 << 40


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_the_cache_is_not_waited_for(path):
    path.unlink()
    os.mkfifo(path)
    assert read_profile(INFO).note == "it cannot be read"
    path.unlink()
    assert read_profile(INFO).note == ""
