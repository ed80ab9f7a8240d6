"""Measure where the time of a load goes, what verifying costs, and how fast it could be.

    python benchmarks/bench_load.py --shape llama-1b --quantize q4_k_m

A package of the shape with random weights is loaded without a check, with SHA-256, with BLAKE3 (a
copy of the package with other hashes), and with `--verify cached` where all shards are remembered
as verified. Each load ends with the first token of a short prompt. The loads run `--cold` times in
fresh processes, as a program starts, and `--rounds` times in this process after one load to warm
up; the order is reversed in every second round. The files are in the page cache throughout.

The seconds of the stages are those of `_load_stages.py`: they may overlap, so they do not add up to
the total. Their timers need all modules before the load begins, while a program opens the device
beside its imports, so fresh processes have none. These have the bytecode of all modules, as
installed packages do; a process that is not counted writes it. Reading, hashing and a plain upload
are also timed alone, see `_load_floor.py`. Bytecode and the list of verified files are kept in a
temporary folder. The last line is one JSON object.
"""

from __future__ import annotations

import time

_START = time.perf_counter()  # before the imports, which a cold load needs too

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402
from contextlib import AbstractContextManager, nullcontext  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import rdrr  # noqa: E402
from _script import finish, table  # noqa: E402
from rdrr._load_options import VerifyMode  # noqa: E402
from rdrr_format.errors import DeviceError  # noqa: E402

MODES: Mapping[str, VerifyMode] = {
    "none": "none",
    "sha256": "full",
    "blake3": "full",
    "cached": "cached",
}
"""The measured ways to verify, and the load option of each."""

PROMPT = range(1, 17)
"""Ids of the prompt whose first token is timed."""

Seconds = dict[str, float]


def loaded(
    folder: Path, mode: str, options: argparse.Namespace, start: float, *, is_fresh: bool = False
) -> Seconds:
    """Load a package once, generate a token, and return the seconds of each stage.

    Args:
        folder: The package.
        mode: One of `MODES`.
        options: Options of the command line.
        start: When the load counts as begun, in seconds of `time.perf_counter`.
        is_fresh: Whether the process has not loaded before; its stages are not timed.
    """
    timers: AbstractContextManager[Seconds] = nullcontext({})
    if not is_fresh:
        from _load_stages import stages

        timers = stages()
    imported = time.perf_counter()
    with timers as seconds:
        model = rdrr.load(
            folder,
            verify=MODES[mode],
            backend=options.backend,
            webgpu=options.webgpu,
            adapter=options.adapter,
            context=options.context,
        )
        ready = time.perf_counter()
        next(iter(model.generate([*PROMPT], max_tokens=1, temperature=0)), None)
        ended = time.perf_counter()
    model.close()
    return {
        "imports": imported - start,
        **seconds,
        "load": ready - imported,
        "first token": ended - ready,
        "total": ended - start,
    }


def in_new_process(folder: Path, mode: str, options: argparse.Namespace) -> Seconds:
    """Load a package in a fresh process and return its seconds."""
    words = ["--package", folder, "--once", mode, "--backend", options.backend]
    words += ["--context", options.context, "--webgpu", options.webgpu]
    if options.adapter:
        words += ["--adapter", options.adapter]
    command = [sys.executable, __file__, *map(str, words)]
    environment = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise DeviceError("loading in a new process failed", found=done.stderr.strip()[-400:])
    seconds: Seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return seconds


def check_seconds(folder: Path, verify: VerifyMode) -> float:
    """Verify the shards without loading anything and return the seconds."""
    from rdrr_manifests.loading import checked_shards

    with rdrr.open_package(folder) as opened:
        start = time.perf_counter()
        with checked_shards(opened, verify):
            pass
        return time.perf_counter() - start


def with_blake3(folder: Path, copy: Path) -> Path | None:
    """Copy a package and state its hashes in BLAKE3; None if blake3 is not installed.

    The shards of the copy are links to the same bytes where the file system allows it.
    """
    from rdrr_format.file_hash import hash_file
    from rdrr_format.integrity import new_hasher

    try:
        new_hasher("blake3")
    except ImportError:
        return None
    copy.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name != "manifest.json":
            link_or_copy(path, copy / path.name)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["hashAlgorithm"] = "blake3"
    for shard in manifest["shards"]:
        shard["hash"] = hash_file(copy / shard["filename"], "blake3")[1]
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return copy


def link_or_copy(path: Path, copy: Path) -> None:
    """Make a hard link to a file, or a copy where links are not possible."""
    try:
        os.link(path, copy)
    except OSError:
        shutil.copyfile(path, copy)


def folders(options: argparse.Namespace, work: Path, scratch: Path) -> dict[str, Path]:
    """Return the package that each mode loads."""
    from _prepared import Clock, package

    folder = options.package or package(
        work, options.shape, "row", Clock(), quantize=options.quantize
    )
    rdrr.open_package(folder)  # reports a missing package
    linked = with_blake3(folder, scratch / "blake3")
    if linked is None:
        print("the package blake3 is not installed", file=sys.stderr)
    packages = {"none": folder, "sha256": folder, "blake3": linked, "cached": folder}
    return {mode: path for mode, path in packages.items() if path is not None}


def medians(runs: Sequence[Seconds]) -> Seconds:
    """Return the median of each stage."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def print_stages(title: str, loads: Mapping[str, Seconds]) -> None:
    """Print the stages of some loads, one load a line, in milliseconds."""
    names = list(next(iter(loads.values())))
    print(f"\n{title}, ms")
    rows = [(mode, *(f"{1e3 * run[name]:.0f}" for name in names)) for mode, run in loads.items()]
    table(("verify", *names), rows)


def alone(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time reading, hashing and uploading by themselves, print and return the seconds."""
    from _load_floor import hash_seconds, read_seconds, upload_seconds

    manifest = rdrr.open_package(folder).manifest
    shards = [folder / shard.filename for shard in manifest.shards]
    cores = os.cpu_count() or 1
    seconds: dict[str, float | None] = {
        "read, 1 thread": read_seconds(shards, 1),
        f"read, {cores} threads": read_seconds(shards, cores),
        "sha256, 1 thread": hash_seconds(shards[:2], "sha256", 1),
        f"sha256, {cores} threads": hash_seconds(shards, "sha256", cores),
        f"blake3, {cores} threads": hash_seconds(shards, "blake3", cores),
    }
    if options.backend == "wgpu":
        seconds.update(upload_seconds(shards, options.adapter))
    size = sum(shard.size for shard in manifest.shards)
    sizes = {"sha256, 1 thread": sum(shard.size for shard in manifest.shards[:2])}
    print(f"\neach step alone: {size / 1e9:.2f} GB in {len(shards)} shards, {cores} CPU cores")
    rows = [
        (name, f"{1e3 * duration:.0f}", f"{sizes.get(name, size) / duration / 1e9:.1f}")
        for name, duration in seconds.items()
        if duration is not None
    ]
    table(("step", "ms", "GB/s"), rows)
    return seconds


def measure(options: argparse.Namespace, work: Path, scratch: Path) -> dict[str, Any]:
    """Measure everything and print the tables; return the figures for JSON.

    The ratio of a mode to `none` is the median of the ratios of the rounds.
    """
    packages = folders(options, work, scratch)
    cold: dict[str, list[Seconds]] = {mode: [] for mode in packages}
    warm: dict[str, list[Seconds]] = {mode: [] for mode in packages}
    check_seconds(packages["none"], "full")
    if options.cold:
        in_new_process(packages["none"], "none", options)  # writes bytecode and shaders
    for _ in range(options.cold):
        for mode, folder in packages.items():
            cold[mode].append(in_new_process(folder, mode, options))
    loaded(packages["none"], "none", options, time.perf_counter())
    # In alternating order, so that no mode always runs first.
    for number in range(options.rounds):
        for mode in packages if number % 2 == 0 else reversed(packages):
            warm[mode].append(loaded(packages[mode], mode, options, time.perf_counter()))
    if options.cold:
        print_stages("in a fresh process", {mode: medians(runs) for mode, runs in cold.items()})
    print_stages("in a warm process", {mode: medians(runs) for mode, runs in warm.items()})
    times = {mode: [run["load"] for run in runs] for mode, runs in warm.items()}
    return {
        "benchmark": "load",
        "bytes": rdrr.open_package(packages["none"]).manifest.total_size,
        "backend": options.backend,
        "cold": cold,
        "warm": warm,
        "seconds": times,
        "medians": {mode: statistics.median(some) for mode, some in times.items()},
        "over_none": {
            mode: statistics.median(a / b for a, b in zip(some, times["none"], strict=True))
            for mode, some in times.items()
        },
        "check_seconds": {
            mode: statistics.median(
                check_seconds(packages["none"], mode) for _ in range(options.rounds)
            )
            for mode in ("full", "cached")
        },
        "alone": alone(packages["none"], options),
    }


def once(options: argparse.Namespace) -> dict[str, Any]:
    """Load once in this process and return the seconds since it began."""
    return {"seconds": loaded(options.package, options.once, options, _START, is_fresh=True)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--package", type=Path, help="load this package instead of one of --shape")
    add("--shape", default="llama-1b", help="shape of shapes.py")
    add("--quantize", default="q4_k_m")
    add("--backend", choices=("wgpu", "cpu"), default="wgpu")
    add("--webgpu", default="auto", help="implementation of WebGPU: auto, wgpu or dawn")
    add("--adapter", metavar="NAME", help="use the adapter whose name contains this")
    add("--context", type=int, default=512, help="slots of the key-value cache")
    add("--rounds", type=int, default=3, help="loads of each mode in this process")
    add("--cold", type=int, default=2, help="loads of each mode in fresh processes")
    add("--once", choices=MODES, help="only load --package once, for --cold")
    add("--work", type=Path, help="keep the package here for the next run")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = parse(arguments)
    if options.once:
        return finish(lambda: once(options))
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=options.work) as scratch,
        patch.dict(
            os.environ,
            {"XDG_CACHE_HOME": f"{scratch}/cache", "PYTHONPYCACHEPREFIX": f"{scratch}/bytecode"},
        ),
    ):
        work = options.work or Path(scratch)
        return finish(lambda: measure(options, work, Path(scratch)))


if __name__ == "__main__":
    raise SystemExit(main())
