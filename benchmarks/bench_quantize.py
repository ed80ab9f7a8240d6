"""Quantization speed on one core, ours beside ggml's C function in the same run.

    python benchmarks/bench_quantize.py --peer path/to/libggml-base.so

Both work on the same rows alternately in the same thread, and CPU time of that thread is
counted, so that other work on the machine does not favour either. The best of several rounds is
reported, in millions of weights a second, and the blocks are compared. The last line is one JSON
object. Without `--peer` only ours is measured. `--quality best` times the longer search, which
gives other blocks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS

F32 = npt.NDArray[np.float32]
Quantize = Callable[[F32, F32 | None], npt.NDArray[np.uint8]]

# Numbers of ggml's public enum ggml_type.
GGML_TYPES = {"Q4_0": 2, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}


def peer_quantizer(library: ctypes.CDLL, name: str) -> Quantize:
    """ggml_quantize_chunk of the library, for one type."""
    function = library.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [ctypes.c_int, pointer, pointer, integer, integer, integer, pointer]

    def quantize(
        rows: npt.NDArray[np.float32], importance: npt.NDArray[np.float32] | None
    ) -> npt.NDArray[np.uint8]:
        n, K = rows.shape
        out = np.zeros((n, CODECS[name].row_bytes(K)), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        function(GGML_TYPES[name], rows.ctypes.data, out.ctypes.data, 0, n, K, weights)
        return out

    return quantize


def seconds(quantize: Quantize, rows: F32, importance: F32 | None) -> float:
    """CPU seconds of this thread for one call."""
    start = time.thread_time()
    quantize(rows, importance)
    return time.thread_time() - start


def measure(
    name: str,
    weighted: bool,
    rows: npt.NDArray[np.float32],
    rounds: int,
    library: ctypes.CDLL | None,
    quality: str,
) -> dict[str, object]:
    """One row of the table."""
    random = np.random.default_rng(1)
    importance = np.exp(random.standard_normal(rows.shape[1])).astype(np.float32)
    columns = importance if weighted else None
    runners: dict[str, Quantize] = {"ours": partial(CODECS[name].quantize, quality=quality)}
    if library is not None:
        runners["ggml"] = peer_quantizer(library, name)
    blocks = {who: run(rows, columns) for who, run in runners.items()}  # also compiles
    times = {who: float("inf") for who in runners}
    for _ in range(rounds):
        for who, run in runners.items():
            times[who] = min(times[who], seconds(run, rows, columns))
    result: dict[str, object] = {"type": name, "importance": weighted}
    result |= {who: round(rows.size / spent / 1e6, 1) for who, spent in times.items()}
    if library is not None:
        size = CODECS[name].dtype.block_bytes
        different = (blocks["ours"] != blocks["ggml"]).reshape(-1, size).any(axis=1)
        result["ratio"] = round(times["ggml"] / times["ours"], 2)
        result["different_blocks"] = int(different.sum())
    return result


def main() -> None:
    """Measure every block type and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, help="libggml-base.so to measure beside ours")
    parser.add_argument("--types", default="Q4_K,Q5_K,Q6_K,Q8_0,Q5_0,Q5_1,Q4_0")
    parser.add_argument("--quality", default="ref", help="ours; `best` gives other blocks")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    library = ctypes.CDLL(str(options.peer)) if options.peer and options.peer.exists() else None
    random = np.random.default_rng(0)
    rows = (random.standard_normal((options.rows, options.columns)) * 0.02).astype(np.float32)

    print("million weights a second, one core")
    print(f"{'type':6} {'importance':10} {'ours':>8} {'ggml C':>8} {'ratio':>6} {'different':>9}")
    results = []
    for name in options.types.split(","):
        for weighted in (False, True) if CODECS[name].takes_importance else (False,):
            row = measure(name, weighted, rows, options.rounds, library, options.quality)
            results.append(row)
            print(
                f"{name:6} {'yes' if weighted else 'no':10} {row['ours']:>8} "
                f"{row.get('ggml', '-'):>8} {row.get('ratio', '-'):>6} "
                f"{row.get('different_blocks', '-'):>9}"
            )
    if library is None:
        print("peer not run")
    ratio = next((row.get("ratio") for row in results if row["type"] == "Q4_K"), None)
    print(json.dumps({"benchmark": "quantize", "ratio": ratio, "results": results}))


if __name__ == "__main__":
    main()
