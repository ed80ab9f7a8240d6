"""Would a GPU quantize faster? Q4_K with its search on a GPU, beside the same codec on the CPU.

    python benchmarks/bench_quantize_gpu.py

A prototype that no command uses; docs/PERFORMANCE.md says why. The blocks are compared bit for
bit. Speeds are millions of weights a second of wall time, best of several rounds: the kernel
alone, the search with its transfers, and the whole codec with one thread and with all cores. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from _gpu_search import GpuSearch
from rdrr_format.codecs import CODECS, _affine
from rdrr_format.codecs.q4_k import _SEARCH

Floats = npt.NDArray[np.float32]

LARGEST_CODE = 15
REPEATS = 20
"""Dispatches in a row, so that the kernel's own time stands out from the submission."""


def fastest(action: Callable[[], object], rounds: int) -> float:
    """Seconds of the best of several rounds, after one that is not timed."""
    action()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def quantized_with(search: GpuSearch, rows: Floats) -> npt.NDArray[np.uint8]:
    """The codec's blocks with the search exchanged."""
    own = _affine.search_groups
    _affine.search_groups = search
    try:
        return CODECS["Q4_K"].quantize(rows)
    finally:
        _affine.search_groups = own


def measure(search: GpuSearch, rows: Floats, rounds: int) -> dict[str, float]:
    """Seconds of each variant for all rows."""
    groups = rows.reshape(-1, 32)
    count = len(groups)

    def kernel(times: int) -> float:
        search.upload(groups, LARGEST_CODE, _SEARCH)

        def run() -> None:
            search.run(count, times)
            search.download(count)

        return fastest(run, rounds)

    def everywhere() -> None:
        for _ in pool.map(CODECS["Q4_K"].quantize, np.array_split(rows, 4 * cores)):
            pass

    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        return {
            "kernel alone": (kernel(REPEATS + 1) - kernel(1)) / REPEATS,
            "search with transfers": fastest(
                lambda: search(groups, None, LARGEST_CODE, _SEARCH), rounds
            ),
            "Q4_K, search on the GPU, one thread": fastest(
                lambda: quantized_with(search, rows), rounds
            ),
            "Q4_K, one core": fastest(lambda: CODECS["Q4_K"].quantize(rows), rounds),
            f"Q4_K, {cores} cores": fastest(everywhere, rounds),
        }


def main() -> None:
    """Compare the bits, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapter", help="part of an adapter's name")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    rows = random.standard_normal((options.rows, options.columns), dtype=np.float32) * 0.02
    search = GpuSearch(rows.size // 32, options.adapter)

    found, expected = quantized_with(search, rows), CODECS["Q4_K"].quantize(rows)
    different = int((found != expected).reshape(-1, 144).any(axis=1).sum())
    print(f"{search.device.info.name}: {different} of {rows.size // 256} blocks differ")
    print(f"{search.odd} groups were left to the CPU")
    rates = {
        name: round(rows.size / spent / 1e6, 1)
        for name, spent in measure(search, rows, options.rounds).items()
    }
    print("million weights a second")
    for name, rate in rates.items():
        print(f"{rate:>10,}  {name}")
    result = {
        "benchmark": "quantize_gpu",
        "adapter": search.device.info.name,
        "different_blocks": different,
        "rates": rates,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
