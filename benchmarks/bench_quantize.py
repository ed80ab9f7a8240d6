"""Compare quantization speed on one core with that of ggml's C function, in the same run.

    python benchmarks/bench_quantize.py --peer path/to/libggml-base.so

Both quantize the same rows, alternately, in the same thread. Its CPU time is counted, not the
elapsed time, so that other work on the machine does not favour either. The best of several rounds
is reported, in millions of weights per second, and the blocks are compared. Without `--peer` only
rdrr is measured. `--quality best` times the longer search, which gives different blocks. The last
line is one JSON object.
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
GGML_TYPES = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
}


def peer_quantizer(library: ctypes.CDLL, name: str) -> Quantize:
    """Return a function that quantizes rows with the library's `ggml_quantize_chunk`.

    Args:
        library: The loaded libggml-base.
        name: Block type, a key of `GGML_TYPES`.
    """
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
    """Quantize once and return the CPU seconds of this thread."""
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
    """Measure one block type and return its row of the table.

    Args:
        name: Block type.
        weighted: Whether the columns have importance weights.
        rows: Weights, float32 [rows, columns].
        rounds: Number of rounds, of which the fastest counts.
        library: The loaded libggml-base, or None to measure only rdrr.
        quality: Search of rdrr's codec, `ref` or `best`.
    """
    random = np.random.default_rng(1)
    importance = np.exp(random.standard_normal(rows.shape[1])).astype(np.float32)
    columns = importance if weighted else None
    runners: dict[str, Quantize] = {"rdrr": partial(CODECS[name].quantize, quality=quality)}
    if library is not None:
        runners["ggml"] = peer_quantizer(library, name)
    blocks = {
        who: run(rows, columns) for who, run in runners.items()
    }  # compiles rdrr's functions too
    times = {who: float("inf") for who in runners}
    for _ in range(rounds):
        for who, run in runners.items():
            times[who] = min(times[who], seconds(run, rows, columns))
    result: dict[str, object] = {"type": name, "importance": weighted}
    result |= {who: round(rows.size / spent / 1e6, 1) for who, spent in times.items()}
    if library is not None:
        size = CODECS[name].dtype.block_bytes
        different = (blocks["rdrr"] != blocks["ggml"]).reshape(-1, size).any(axis=1)
        result["ratio"] = round(times["ggml"] / times["rdrr"], 2)
        result["different_blocks"] = int(different.sum())
    return result


def main() -> None:
    """Measure every block type and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, help="ggml's libggml-base.so")
    parser.add_argument(
        "--types", default="Q4_K,Q5_K,Q6_K,Q8_0,Q5_0,Q5_1,Q4_0,Q4_1", help="block types to measure"
    )
    parser.add_argument("--quality", default="ref", help="rdrr's search, ref or best")
    parser.add_argument("--rows", type=int, default=512, help="rows to quantize")
    parser.add_argument("--columns", type=int, default=4096, help="weights per row")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the best counts")
    options = parser.parse_args()
    library = ctypes.CDLL(str(options.peer)) if options.peer and options.peer.exists() else None
    random = np.random.default_rng(0)
    rows = (random.standard_normal((options.rows, options.columns)) * 0.02).astype(np.float32)

    print("million weights per second, one core")
    print(f"{'type':6} {'importance':10} {'rdrr':>8} {'ggml C':>8} {'ratio':>6} {'different':>9}")
    results = []
    for name in options.types.split(","):
        for weighted in (False, True) if CODECS[name].takes_importance else (False,):
            row = measure(name, weighted, rows, options.rounds, library, options.quality)
            results.append(row)
            print(
                f"{name:6} {'yes' if weighted else 'no':10} {row['rdrr']:>8} "
                f"{row.get('ggml', '-'):>8} {row.get('ratio', '-'):>6} "
                f"{row.get('different_blocks', '-'):>9}"
            )
    if library is None:
        print("ggml: not run, --peer is not given or does not exist")
    ratio = next((row.get("ratio") for row in results if row["type"] == "Q4_K"), None)
    print(json.dumps({"benchmark": "quantize", "ratio": ratio, "results": results}))


if __name__ == "__main__":
    main()
