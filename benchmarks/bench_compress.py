"""What compressing shards saves and costs, by storage type and level.

    python benchmarks/bench_compress.py examples/small-llama

The checkpoint is converted to each storage type, and its shards are compressed in memory. Speeds
are MB of content a second of this thread's CPU time, best of several rounds; reading is beside
that of one tensor alone, in milliseconds. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rdrr_converter.convert import convert
from rdrr_converter.recipes import RecipeName
from rdrr_format.compression import Compression
from rdrr_format.shard_reader import ShardReader
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import ShardInfo, ShardSpan
from rdrr_format.stores import MemoryStore
from rdrr_manifests.package import open_package


def content_of(source: Path, quantize: RecipeName) -> bytes:
    """The bytes of all shards of a package, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        convert(source, Path(folder) / "package", quantize=quantize)
        with open_package(Path(folder) / "package") as package:
            names = [shard.filename for shard in package.manifest.shards]
            return b"".join(package.store.read(name).tobytes() for name in names)


def fastest(action: Callable[[], object], rounds: int) -> float:
    """CPU seconds of this thread in the best of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        action()
        times.append(time.thread_time() - start)
    return min(times)


def measure(content: bytes, level: int, rounds: int) -> dict[str, float]:
    """Size beside the content's, and speeds."""
    store = MemoryStore()

    def write() -> tuple[ShardInfo, ...]:
        writer = ShardWriter(store, len(content), compression=Compression(level))
        writer.write(content)
        return writer.close()

    def read(*run: int) -> bytes:
        return ShardReader(store, shards).read([ShardSpan(0, *run)]).tobytes()

    shards = write()
    whole, part = (0, len(content)), (len(content) // 2, min(4096, len(content) // 2))
    assert read(*whole) == content
    return {
        "level": level,
        "size": round(shards[0].size / len(content), 3),
        "write": round(len(content) / fastest(write, rounds) / 1e6),
        "read": round(len(content) / fastest(lambda: read(*whole), rounds) / 1e6),
        "small tensor, ms": round(1e3 * fastest(lambda: read(*part), rounds), 2),
    }


def main() -> None:
    """Measure every type and level, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="a checkpoint")
    parser.add_argument("--types", default="f32,f16,q8_0,q4_k_m")
    parser.add_argument("--levels", default="1,3,9,19")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = []
    columns = ("type", "level", "size", "write", "read", "small tensor, ms")
    print(" | ".join(f"{name:>6}" for name in columns))
    for quantize in options.types.split(","):
        content = content_of(options.source, quantize)
        for level in map(int, options.levels.split(",")):
            row = {"type": quantize, **measure(content, level, options.rounds)}
            results.append(row)
            print(" | ".join(f"{row[name]:>6}" for name in columns), flush=True)
    print(json.dumps({"benchmark": "compress", "results": results}))


if __name__ == "__main__":
    main()
