"""Loading uses host memory for pieces of a package, never for the whole package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.deadlines import HANGS
from support.packages import llama_manifest, write_random_package
from support.shard_cutting import in_shards

MIB = 1 << 20
SHARD = 16 * MIB
BOUND = 192 * MIB
"""Anonymous memory in bytes beyond that of a process that has loaded a package before, mostly for
copies that wgpu has in flight. The weights of these tests are several times as large."""

LOAD = """
import json, sys, threading
from pathlib import Path
import rdrr
from rdrr_device.device import open_device
from rdrr_manifests.package import Package
from rdrr_runtime.gpu import GpuBackend
from rdrr._backends import load_checked, resolve_hints

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(one.split()[1]) << 10 for one in lines if one.startswith("RssAnon:"))

def watch():
    while not done.wait(0.002):
        peaks.append(anonymous() - device.memory.live)

warm, folder, hints, hoards = json.loads(sys.argv[1])
device = open_device()

def load(path):
    package = rdrr.open_package(path)
    policy = resolve_hints(package, hints)
    return load_checked(
        package, "full", lambda: GpuBackend(package, context=32, device=device, policy=policy)
    )[0]

load(warm).close()  # pipelines and modules
if hoards:
    kept, real = [], Package.read_rows
    def read_rows(self, *arguments):
        kept.append(real(self, *arguments).copy())
        return kept[-1]
    Package.read_rows = read_rows
before, peaks, done = anonymous() - device.memory.live, [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
backend = load(folder)
done.set()
watcher.join()
print(json.dumps({"memory_used": max(peaks) - before, "weights": backend.info.weights_bytes}))
"""
"""Prints the anonymous bytes of a load without GPU buffers, which software adapters keep there."""


@pytest.fixture
def package_of(tmp_path, rng):
    """Return a function that writes a package with a number of layers, in shards of 16 MiB."""

    def make(dtype: str, layers: int) -> Path:
        folder = tmp_path / f"{dtype}-{layers}"
        manifest = llama_manifest(dtype, layers=layers, inner=8192)
        write_random_package(folder, in_shards(manifest, SHARD), rng)
        return folder

    return make


def memory_used(warm: Path, folder: Path, *, hints=None, hoards: bool = False) -> dict[str, int]:
    """Return the anonymous bytes of a load without GPU buffers, and the bytes of the weights."""
    words = json.dumps([str(warm), str(folder), hints or {}, hoards])
    done = subprocess.run(
        [sys.executable, "-c", LOAD, words],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        timeout=HANGS,
    )
    document: dict[str, int] = json.loads(done.stdout)
    print(folder.name, document)
    return document


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
@pytest.mark.parametrize(
    ("dtype", "layers", "hints"),
    [("F16", 36, {}), ("Q4_K", 18, {"q4kMatmul": "dequant_f32"})],
    ids=["as stored", "expanded"],
)
def test_host_memory_of_a_load_does_not_grow_with_the_package(package_of, dtype, layers, hints):
    warm, large = package_of(dtype, 1), package_of(dtype, layers)
    assert len(list(large.glob("shard_*"))) > 2
    used = memory_used(warm, large, hints=hints)
    assert used["weights"] > 3 * BOUND
    assert used["memory_used"] < BOUND


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_a_loader_that_kept_what_it_read_would_be_noticed(package_of):
    warm, large = package_of("F16", 1), package_of("F16", 36)
    assert memory_used(warm, large, hoards=True)["memory_used"] > 2 * BOUND
