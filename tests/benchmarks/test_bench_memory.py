"""The memory of a conversion does not grow with the model, and the benchmark would notice it."""

from __future__ import annotations

import subprocess
import sys

import bench_memory
import pytest
from shapes import Shape
from support.commands import environment
from synthesize import synthesize

SMALL = Shape("llama", 256, 512, 2, 4, 2, 64, 1024, tied=False)
LARGE = Shape("llama", 1024, 4096, 2, 16, 4, 64, 16384, tied=False)
ROOM = 60 << 20
"""Bytes for a few chunks of two threads and for the manifest; the large model has 126 MB."""


@pytest.fixture(autouse=True)
def _components(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])


@pytest.mark.thorough
def test_converting_a_model_thirty_times_as_large_takes_no_more_memory(tmp_path):
    options = {"quantize": "q8_0", "q4k_layout": "column", "fuse_gate_up": True, "workers": 2}
    sizes, peaks = [], []
    for name, shape in (("small", SMALL), ("large", LARGE)):
        sizes.append(synthesize(shape, tmp_path / name))
        peaks.append(bench_memory.peak_bytes(tmp_path / name, tmp_path / "package", options))
    print([peak >> 20 for peak in peaks])
    assert sizes[1] > 25 * sizes[0]
    assert sizes[1] > 2 * ROOM
    assert peaks[1] - peaks[0] < ROOM


def test_allocated_memory_is_counted_and_mapped_files_are_not(tmp_path):
    (tmp_path / "file").write_bytes(bytes(64 << 20))
    script = """
import mmap, sys
kept = bytearray(int(sys.argv[1]))
with open(sys.argv[2], 'rb') as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sum(mapped[::4096])
print('ready', flush=True)
sys.stdin.read()
"""
    sizes = []
    for size in (0, 32 << 20):
        command = [sys.executable, "-c", script, str(size), str(tmp_path / "file")]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            process.stdout.readline()
            sizes.append(bench_memory.anonymous_bytes(process.pid))
            process.communicate("")
    assert sizes[0] < 32 << 20
    assert sizes[1] - sizes[0] == pytest.approx(32 << 20, rel=0.1)
