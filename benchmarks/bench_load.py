"""Measure what verifying the shards adds to a load: `--verify none`, `full` and `cached`.

    python benchmarks/bench_load.py --shape qwen3-0.6b --quantize f16

A package of the shape with random weights is loaded once to warm up caches, then once per mode and
round; the order of the modes is reversed in every second round. `cached` finds all shards in the
list of verified files, because the loads before it hashed them. Times run from the path of the
package to the loaded model. The check is also timed alone: hashing, in as many threads as a load
uses, and looking up the list of verified files, which is kept in a temporary folder. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import rdrr
from _prepared import Clock, package
from _script import finish, table
from rdrr._load_options import VERIFY, VerifyMode
from rdrr_manifests.loading import checked_shards
from shapes import SHAPES


def load_seconds(folder: Path, verify: VerifyMode, options: argparse.Namespace) -> float:
    """Load a package once and return the seconds."""
    start = time.perf_counter()
    model = rdrr.load(
        folder,
        verify=verify,
        backend=options.backend,
        adapter=options.adapter,
        context=options.context,
    )
    taken = time.perf_counter() - start
    model.close()
    return taken


def check_seconds(folder: Path, verify: VerifyMode) -> float:
    """Verify the shards without loading anything and return the seconds."""
    with rdrr.open_package(folder) as opened:
        start = time.perf_counter()
        with checked_shards(opened, verify):
            pass
        return time.perf_counter() - start


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Measure all modes and print the table; return the figures for JSON.

    The ratio of a mode to `none` is the median of the ratios of the rounds.
    """
    folder = options.package or package(
        work, options.shape, "row", Clock(), quantize=options.quantize
    )
    size = rdrr.open_package(folder).manifest.total_size
    modes: tuple[VerifyMode, ...] = ("none", "full", "cached")
    assert set(modes) == set(VERIFY)
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    load_seconds(folder, "full", options)
    for number in range(options.rounds):
        for mode in modes if number % 2 == 0 else reversed(modes):
            times[mode].append(load_seconds(folder, mode, options))
    ratios = {
        mode: statistics.median(a / b for a, b in zip(times[mode], times["none"], strict=True))
        for mode in modes
    }
    medians = {mode: statistics.median(times[mode]) for mode in modes}
    alone = {
        mode: statistics.median(check_seconds(folder, mode) for _ in range(options.rounds))
        for mode in modes[1:]
    }
    table(
        ("verify", "median, s", "least, s", "over none"),
        [
            (mode, f"{medians[mode]:.2f}", f"{min(times[mode]):.2f}", f"{ratios[mode]:.3f}")
            for mode in modes
        ],
    )
    speed = size / alone["full"] / 2**30
    print(f"hashing alone: {alone['full']:.2f} s, {speed:.2f} GiB/s, {os.cpu_count()} CPU cores")
    print(f"looking up verified files alone: {1e3 * alone['cached']:.1f} ms")
    return {
        "benchmark": "load",
        "bytes": size,
        "backend": options.backend,
        "seconds": times,
        "medians": medians,
        "over_none": ratios,
        "check_seconds": alone,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--package", type=Path, help="load this package instead of one of --shape")
    add("--shape", choices=tuple(SHAPES), default="qwen3-0.6b")
    add("--quantize", default="f16")
    add("--backend", choices=("wgpu", "cpu"), default="wgpu")
    add("--adapter", metavar="NAME", help="use the adapter whose name contains this")
    add("--context", type=int, default=512, help="slots of the key-value cache")
    add("--rounds", type=int, default=5, help="loads of each mode")
    add("--work", type=Path, help="keep the package here for the next run")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = parse(arguments)
    with (
        tempfile.TemporaryDirectory(dir=options.work) as scratch,
        patch.dict(os.environ, {"XDG_CACHE_HOME": f"{scratch}/cache"}),
    ):
        work = options.work or Path(scratch)
        return finish(lambda: measure(options, work))


if __name__ == "__main__":
    raise SystemExit(main())
