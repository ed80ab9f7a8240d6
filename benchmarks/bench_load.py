"""What checking the shards costs a load: `--verify none`, `full` and `cached` in turn.

    python benchmarks/bench_load.py --shape qwen3-0.6b --quantize f16

A package of the shape, random weights, is loaded once to warm caches up, then in rounds of each
mode; the order alternates from round to round. `cached` finds every shard remembered, since the
loads before it hashed them. Times are from the path to the loaded model. The check alone is timed
beside them, hashing in as many threads as a load takes and finding everything remembered. What is
verified is remembered in a folder of the benchmark's own. The last line is one JSON object.
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
    """Seconds of one load."""
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
    """Seconds of checking the shards while nothing is loaded."""
    with rdrr.open_package(folder) as opened:
        start = time.perf_counter()
        with checked_shards(opened, verify):
            pass
        return time.perf_counter() - start


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Medians of all modes, and how much longer each takes than `none`, round by round."""
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
    print(f"hashing alone: {alone['full']:.2f} s, {speed:.2f} GiB/s, {os.cpu_count()} processors")
    print(f"finding all remembered: {1e3 * alone['cached']:.1f} ms")
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
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--package", type=Path, help="a package, in place of one of --shape")
    add("--shape", choices=tuple(SHAPES), default="qwen3-0.6b")
    add("--quantize", default="f16")
    add("--backend", choices=("wgpu", "cpu"), default="wgpu")
    add("--adapter", metavar="NAME", help="part of an adapter's name")
    add("--context", type=int, default=512)
    add("--rounds", type=int, default=5)
    add("--work", type=Path, help="keep the package here for the next run")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parse(arguments)
    with (
        tempfile.TemporaryDirectory(dir=options.work) as scratch,
        patch.dict(os.environ, {"XDG_CACHE_HOME": f"{scratch}/cache"}),
    ):
        work = options.work or Path(scratch)
        return finish(lambda: measure(options, work))


if __name__ == "__main__":
    raise SystemExit(main())
