"""`bench_load.py` times every mode, and only the modes that hash do hash."""

from __future__ import annotations

import os
import time

import pytest
from rdrr_format.errors import DeviceError
from support.hashing import count_hashing
from support.scripts import script

ROUNDS = 2
MODES = {"none", "sha256", "blake3", "cached"}


@pytest.mark.thorough
def test_every_mode_is_timed_and_hashes_as_often_as_it_should(made_package, monkeypatch):
    cache = os.environ["XDG_CACHE_HOME"]
    hashed = count_hashing(monkeypatch)
    words = ("--package", made_package, "--backend", "cpu", "--rounds", ROUNDS, "--cold", 0)
    answer = script("bench_load", *words).json()
    assert {mode: len(times) for mode, times in answer["seconds"].items()} == dict.fromkeys(
        MODES, ROUNDS
    )
    assert answer["over_none"]["none"] == 1
    # The first check, each load with `sha256` and with `blake3`, and each check with `full` alone.
    assert set(hashed.values()) == {1 + 2 * ROUNDS + ROUNDS}
    assert os.environ["XDG_CACHE_HOME"] == cache
    assert answer["check_seconds"]["full"] > answer["check_seconds"]["cached"] > 0


@pytest.mark.thorough
def test_the_stages_of_a_load_are_timed_and_lie_within_it(made_package):
    words = ("--package", made_package, "--rounds", 1, "--cold", 0)
    answer = script("bench_load", *words).json()
    for mode in MODES:
        (times,) = answer["warm"][mode]
        for stage in ("device", "package", "upload", "lower", "compile"):
            assert times[stage] > 0, stage
        assert times["load"] + times["first token"] <= times["total"]
        assert (times["hashes"] == 0) == (mode == "none")
    assert answer["alone"]["write_buffer"] > 0


@pytest.mark.thorough
def test_a_cold_load_runs_in_a_process_of_its_own_and_imports_everything(made_package):
    import bench_load

    options = bench_load.parse(["--package", str(made_package), "--backend", "cpu"])
    cold = bench_load.in_new_process(made_package, "sha256", options)
    warm = bench_load.loaded(made_package, "sha256", options, time.perf_counter())
    assert cold["imports"] > warm["imports"]
    assert cold["load"] + cold["imports"] < cold["total"]
    with pytest.raises(DeviceError, match="new process"):
        bench_load.in_new_process(made_package / "none", "sha256", options)


def test_a_missing_package_is_reported_in_one_line(tmp_path):
    done = script("bench_load", "--package", tmp_path / "none", "--backend", "cpu")
    assert done.code == 1
    assert done.err.startswith("error: ")
