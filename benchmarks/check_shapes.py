"""Check models of real shapes: GPU logits against torch, memory while loading, first token.

    python benchmarks/check_shapes.py --shapes gemma3-1b,llama-8b --quantize f16

The weights are random; sizes, tables and kernels are those of the real models. For each shape a
checkpoint is written, converted and loaded on the GPU while the process's anonymous memory is
watched. Then the logits of all tokens of a prompt, on the exact and on the default path, are
compared with the torch reference on the same package. The tolerances are those of the project: 1e-3
and 5e-3 of the largest logit. Paths with int8 kernels are judged by perplexity instead
(`bench_quality.py`); their error is only printed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bench_memory import INTERVAL, anonymous_bytes
from shapes import SHAPES
from synthesize import synthesize

F32 = npt.NDArray[np.float32]
PATHS: Mapping[str, tuple[dict[str, str], str, float]] = {
    "exact": ({"computePrecision": "f32"}, "f32", 1e-3),
    "default": ({}, "f16", 5e-3),
}
"""Kernel hints, type of the cache and tolerance of each path."""


@dataclass
class Peak:
    """The peak of this process's anonymous memory.

    Attributes:
        size: Bytes beyond those at the start of the measurement.
    """

    size: int = 0


@contextmanager
def watch_memory() -> Iterator[Peak]:
    """Watch this process's anonymous memory during the block; yield its peak above the start."""
    start, peak, done = anonymous_bytes(os.getpid()), Peak(), threading.Event()

    def look() -> None:
        while not done.wait(INTERVAL):
            peak.size = max(peak.size, anonymous_bytes(os.getpid()) - start)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def relative_error(actual: F32, expected: F32) -> float:
    """Return max |actual - expected| / max |expected|."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def same_top(actual: F32, expected: F32) -> bool:
    """Return whether the most probable token is the same wherever `expected` decides clearly.

    A row is clear if its margin between the two largest logits exceeds four times the largest
    difference to `actual`.
    """
    best = np.sort(expected, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > 4 * np.abs(actual - expected).max()
    return bool(np.all(actual.argmax(1)[clear] == expected.argmax(1)[clear]))


def run_path(
    folder: Path, path: str, ids: list[int], options: argparse.Namespace
) -> tuple[dict[str, Any], F32]:
    """Load the package and run it on one path; return the measurements and the logits."""
    from rdrr_device.device import open_device
    from rdrr_manifests.package import open_package
    from rdrr_runtime.compile.choice.hints import resolve
    from rdrr_runtime.gpu import GpuBackend

    hints, kv_dtype, _ = PATHS[path]
    package = open_package(folder)
    shard = max(entry.size for entry in package.manifest.shards)
    with closing(open_device(options.adapter)) as device:
        start = time.perf_counter()
        with watch_memory() as peak:
            backend = GpuBackend(
                package,
                context=options.context,
                kv_dtype=kv_dtype,
                device=device,
                policy=resolve({"run flag": hints}),
            )
            backend.greedy(ids[:1], 0, 1)
        loaded = time.perf_counter() - start
        logits = backend.logits(ids, 0, all_rows=True)
        prompt = (ids * (options.prompt // len(ids) + 1))[: options.prompt]
        backend.greedy(prompt, 0, 1)
        start = time.perf_counter()
        backend.greedy(prompt, 0, 1)
        first = time.perf_counter() - start
        info = backend.info
        int8 = any(
            ".int8" in decision.kernel or "matmul_int8" in decision.kernel
            for decision in info.decisions
        )
        backend.close()
    row = {
        "path": path,
        "int8": int8,
        "load_seconds": round(loaded, 2),
        "host_peak": peak.size,
        "host_limit": 2 * shard + (1 << 30),
        "first_token_ms": round(1000 * first, 1),
        "weights_bytes": info.weights_bytes,
        "kv_bytes": info.kv_bytes,
        "package_bytes": package.manifest.total_size,
    }
    return row, logits


def with_errors(row: dict[str, Any], logits: F32, expected: F32) -> dict[str, Any]:
    """Return the row of a path with the errors of its logits."""
    error, limit = relative_error(logits, expected), PATHS[row["path"]][2]
    has_tolerance = row["path"] == "exact" or not row["int8"]
    return {
        **row,
        "error": error,
        "same_top": same_top(logits, expected),
        "within": error <= limit if has_tolerance else None,
    }


def check(name: str, work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Check one shape and return a row for each path."""
    from rdrr_converter.convert import convert
    from rdrr_manifests.package import open_package
    from rdrr_runtime.reference.backend import CpuBackend

    checkpoint, folder = work / name, work / f"{name}-{options.quantize}"
    synthesize(SHAPES[name], checkpoint)
    convert(checkpoint, folder, quantize=options.quantize, workers=os.cpu_count())
    shutil.rmtree(checkpoint)
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"{name}: ids from seed {seed}", file=sys.stderr, flush=True)
    ids = np.random.default_rng(seed).integers(3, SHAPES[name].vocab, options.tokens).tolist()
    # The GPU runs first: loading would reuse memory that the reference has freed, and seem cheaper.
    runs = [run_path(folder, path, ids, options) for path in options.paths.split(",")]
    reference = CpuBackend(open_package(folder), context=options.tokens)
    expected = reference.logits(ids, 0, all_rows=True)
    rows = [{"shape": name, **with_errors(row, logits, expected)} for row, logits in runs]
    shutil.rmtree(folder)
    return rows


def show(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    verdict = {True: "within", False: "BEYOND", None: "int8, no limit"}[row["within"]]
    print(
        f"{row['shape']:14} {row['path']:8} error {row['error']:.1e} {verdict:14}"
        f" top {'same' if row['same_top'] else 'differs':8}"
        f" load {row['load_seconds']:6.2f} s of {row['package_bytes'] / 1e9:5.2f} GB,"
        f" host peak {row['host_peak'] / 2**20:5.0f} MiB of {row['host_limit'] / 2**20:5.0f},"
        f" first token {row['first_token_ms']:6.1f} ms,"
        f" GPU weights {row['weights_bytes'] / row['package_bytes']:.2f} of the package",
        flush=True,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shapes", default="gemma3-1b,llama-1b", help="shapes of shapes.py")
    parser.add_argument("--quantize", default="f16")
    parser.add_argument("--paths", default=",".join(PATHS), help="paths to check")
    parser.add_argument("--tokens", type=int, default=48, help="tokens whose logits are compared")
    parser.add_argument("--prompt", type=int, default=512, help="prompt of the first token")
    parser.add_argument("--context", type=int, default=1024, help="slots of the key-value cache")
    parser.add_argument("--adapter", help="use the adapter whose name contains this")
    parser.add_argument("--work", type=Path, help="folder for temporary files")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        for name in options.shapes.split(","):
            for row in check(name, Path(work), options):
                show(row)
                rows.append(row)
    print(json.dumps({"benchmark": "shapes", "quantize": options.quantize, "rows": rows}))


if __name__ == "__main__":
    main()
