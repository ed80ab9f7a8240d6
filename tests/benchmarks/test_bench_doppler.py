"""bench_doppler.py: both runtimes load the same package and give the same ids."""

from __future__ import annotations

import os

import pytest
from bench_doppler import _equal_at_the_start
from peers.doppler import DopplerError, unpacked
from rdrr_device.adapters import list_adapters
from support.dawn import FOLDER, NOT_SET_UP, dawn_environment, is_set_up
from support.scripts import script


@pytest.mark.thorough
def test_both_runtimes_are_measured_and_their_ids_are_equal(tmp_path, monkeypatch):
    if not is_set_up():
        assert "CI" not in os.environ, NOT_SET_UP
        pytest.skip(NOT_SET_UP)
    list_adapters()  # wgpu keeps the system's driver; that of Dawn is for DOPPLER's process
    for name in ("VK_DRIVER_FILES", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, dawn_environment()[name])
    sizes = ("--prompt-tokens", 12, "--tokens", 9, "--repeat", 1, "--busy", 0)
    where = ("--peer", FOLDER, "--work", tmp_path, "--shapes", "tiny")
    (shape,) = script("bench_doppler", *where, *sizes).json()["shapes"]
    assert shape["not_run"] == {}
    assert len(shape["runtimes"]) == 3
    for runtime in shape["runtimes"].values():
        assert (runtime["ids_equal"], runtime["ids"]) == (9, 9)
        assert runtime["prefill_tokens_per_second"]["median"] > 0


def test_a_missing_archive_is_one_line_on_stderr(tmp_path):
    with pytest.raises(DopplerError, match="--pack"), unpacked(tmp_path / "no.tar.xz"):
        pass
    done = script("bench_doppler", "--peer", tmp_path / "no.tar.xz", "--work", tmp_path / "work")
    assert done.code == 1
    assert "no.tar.xz does not exist" in done.err


def test_ids_are_compared_up_to_the_first_difference():
    assert _equal_at_the_start([1, 2, 3], [1, 2, 4]) == 2
    assert _equal_at_the_start([1, 2], [1, 2, 4]) == 2
    assert _equal_at_the_start([5], [1]) == 0
