"""bench_doppler.py: all runtimes load the same package and give the same ids."""

from __future__ import annotations

import json
import os

import pytest
from bench_doppler import _equal_at_the_start
from peers.in_node import NodeError, unpacked
from rdrr_device.adapters import list_adapters
from support.dawn import FOLDER, NOT_SET_UP, dawn_environment, is_set_up
from support.scripts import script

SOFTWARE = {"language": ["packed_4x8_integer_dot_product"], "software": True}


@pytest.mark.thorough
def test_all_runtimes_are_measured_and_their_ids_are_equal(tmp_path, monkeypatch):
    if not is_set_up():
        assert "CI" not in os.environ, NOT_SET_UP
        pytest.skip(NOT_SET_UP)
    list_adapters()  # wgpu keeps the system's driver; that of Dawn is for DOPPLER's process
    for name in ("VK_DRIVER_FILES", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, dawn_environment()[name])
    # One token: the software driver takes minutes for the products of a longer prompt under Tint.
    sizes = ("--prompt-tokens", 1, "--tokens", 9, "--repeat", 1, "--busy", 0)
    device = tmp_path / "device.json"
    device.write_text(json.dumps(SOFTWARE), encoding="utf-8")
    where = ("--peer", FOLDER, "--work", tmp_path, "--shapes", "tiny", "--target", device)
    (shape,) = script("bench_doppler", *where, *sizes).json()["shapes"]
    assert shape["not_run"] == {}
    assert len(shape["runtimes"]) == 4
    for runtime in shape["runtimes"].values():
        assert (runtime["ids_equal"], runtime["ids"]) == (9, 9)
        assert runtime["prefill_tokens_per_second"]["median"] > 0


def test_a_missing_archive_is_one_line_on_stderr(tmp_path):
    with pytest.raises(NodeError, match="--pack"), unpacked(tmp_path / "no.tar.xz"):
        pass
    done = script("bench_doppler", "--peer", tmp_path / "no.tar.xz", "--work", tmp_path / "work")
    assert done.code == 1
    assert "no.tar.xz does not exist" in done.err


def test_ids_are_compared_up_to_the_first_difference():
    assert _equal_at_the_start([1, 2, 3], [1, 2, 4]) == 2
    assert _equal_at_the_start([1, 2], [1, 2, 4]) == 2
    assert _equal_at_the_start([5], [1]) == 0
