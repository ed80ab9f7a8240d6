"""Measure converting a checkpoint from a URL: fetching weights while reading, or downloading first.

    python benchmarks/bench_remote.py [--gigabytes 1] [--delay 0.05] [--megabytes 100]

The network is simulated by a local folder that answers each request after a delay and then at a
given rate per connection. A download makes eight requests at once. The two variants alternate, and
the fastest round of each counts. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from rdrr_converter.checkpoint.sparse_files import PIECE_BYTES
from rdrr_converter.convert import FETCHERS, convert
from rdrr_format.opening import open_store
from shapes import Shape
from synthesize import synthesize

LAYER_BYTES = 31.5e6  # bytes of a layer of the shape below, in bfloat16


class SlowFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec publishes no types
    """A local folder with the delay and the bandwidth of a network: `slow:///path`.

    Attributes:
        delay: Seconds before each answer.
        rate: Bytes per second of each connection.
        received: Bytes read so far.
        requests: Requests so far.
    """

    protocol = "slow"
    delay, rate = 0.0, 1e12
    received = requests = 0
    lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("slow://")) or "/"

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Return a byte range of a file after the time that a network would take."""
        first = start or 0
        with Path(path).open("rb") as file:
            file.seek(first)
            content = file.read() if end is None else file.read(end - first)
        time.sleep(self.delay + len(content) / self.rate)
        kind = type(self)
        with kind.lock:
            kind.requests += 1
            kind.received += len(content)
        return content


def download(source: str, folder: Path) -> Path:
    """Download a whole checkpoint with as many concurrent requests as a conversion makes."""
    store = open_store(source)
    folder.mkdir(exist_ok=True)

    def fetch(work: tuple[Path, str, int]) -> None:
        path, name, start = work
        content = store.read(name, start, PIECE_BYTES)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(content.data)

    work: list[tuple[Path, str, int]] = []
    for name in store.list():
        path = folder / name
        size = store.size(name)
        with path.open("wb") as file:
            file.truncate(size)
        work += [(path, name, start) for start in range(0, size, PIECE_BYTES)]
    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(fetch, work))
    return folder


def measure(source: str, out: Path, *, download_first: bool) -> dict[str, Any]:
    """Convert once, with or without a download before; return seconds, requests and bytes."""
    SlowFileSystem.requests = SlowFileSystem.received = 0
    start = time.perf_counter()
    fetched = download(source, out.with_name("fetched")) if download_first else None
    options = {"quantize": "q4_k_m", "model_id": "model", "overwrite": True}
    convert(fetched or source, out, **options)  # type: ignore[arg-type]
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "requests": SlowFileSystem.requests,
        "bytes": SlowFileSystem.received,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the checkpoint")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument(
        "--megabytes", type=float, default=100.0, help="MB per second per connection"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts")
    parser.add_argument("--work", type=Path, default=None, help="folder for temporary files")
    arguments = parser.parse_args()
    fsspec.register_implementation("slow", SlowFileSystem, clobber=True)
    SlowFileSystem.delay, SlowFileSystem.rate = arguments.delay, arguments.megabytes * 1e6
    with tempfile.TemporaryDirectory(dir=arguments.work) as name:
        folder = Path(name)
        layers = max(1, round(arguments.gigabytes * 1e9 / LAYER_BYTES))
        shape = Shape("llama", 1024, 4096, layers, 16, 8, 64, 8192, tied=True)
        size = synthesize(shape, folder / "model")
        source = f"slow://{folder / 'model'}"
        # Compiles functions, and brings the checkpoint into the page cache.
        convert(folder / "model", folder / "out", overwrite=True)
        rounds = [
            [measure(source, folder / "out", download_first=first) for first in (False, True)]
            for _ in range(arguments.rounds)
        ]
    ranges, whole = (
        min(variants, key=lambda run: run["seconds"]) for variants in zip(*rounds, strict=True)
    )
    print(json.dumps({"benchmark": "remote", "size": size, "ranges": ranges, "download": whole}))


if __name__ == "__main__":
    main()
