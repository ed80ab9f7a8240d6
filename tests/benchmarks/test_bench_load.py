"""`bench_load.py` times every mode, and only the modes that hash do hash."""

from __future__ import annotations

import os

from support.hashing import count_hashing
from support.scripts import script

ROUNDS = 2


def test_every_mode_is_timed_and_hashes_as_often_as_it_should(made_package, monkeypatch):
    cache = os.environ["XDG_CACHE_HOME"]
    hashed = count_hashing(monkeypatch)
    words = ("--package", made_package, "--backend", "cpu", "--rounds", ROUNDS)
    found = script("bench_load", *words).json()
    assert {mode: len(times) for mode, times in found["seconds"].items()} == {
        "none": ROUNDS,
        "full": ROUNDS,
        "cached": ROUNDS,
    }
    assert found["over_none"]["none"] == 1
    # The first load, each load with `full`, and each check with `full` alone.
    assert set(hashed.values()) == {1 + ROUNDS + ROUNDS}
    assert os.environ["XDG_CACHE_HOME"] == cache
    assert found["check_seconds"]["full"] > found["check_seconds"]["cached"] > 0


def test_a_missing_package_is_reported_in_one_line(tmp_path):
    done = script("bench_load", "--package", tmp_path / "none", "--backend", "cpu")
    assert done.code == 1
    assert done.err.startswith("error: ")
