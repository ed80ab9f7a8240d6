"""Measure how much CPU time each step of a conversion takes.

    python benchmarks/bench_convert.py --shape qwen3-0.6b

A checkpoint with random weights is converted, and the CPU time that all threads spend in the
functions of `STEPS` is added up. The numba functions are compiled beforehand. Rates are in millions
of weights per second. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rdrr_converter.convert import convert
from rdrr_converter.encode import quantize, verify
from rdrr_converter.encode.measure import ErrorMeter
from rdrr_converter.output.report import ConversionResult
from rdrr_converter.reading import scan
from rdrr_format import shard_reader, shard_writer
from rdrr_format.codecs import CODECS, Codec, _signed_search, affine
from shapes import SHAPES
from synthesize import synthesize

STEPS = (
    ("find the largest values", scan, "measure_finite"),
    ("read to quantize", quantize, "read_chunk"),
    ("quantize", Codec, "quantize"),
    ("  of it, the search of Q4_K", affine, "search_groups"),
    ("  of it, the search of Q6_K", _signed_search, "search_signed"),
    ("hash and write", shard_writer._ShardFile, "write"),
    ("hash again", shard_reader.ShardReader, "verify"),
    ("read to verify", verify, "read_chunk"),
    ("decode to verify", Codec, "dequantize"),
    ("compare", ErrorMeter, "add"),
)
"""The steps to time: a name, then the function, given by its owner and attribute."""


@contextmanager
def timed(spent: dict[str, float], name: str, owner: Any, attribute: str) -> Iterator[None]:
    """Add the CPU time that a function takes within the block to `spent[name]`."""
    function: Callable[..., Any] = getattr(owner, attribute)

    def counted(*arguments: Any, **options: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            # Not locked: a race between threads loses one call of thousands.
            spent[name] += time.thread_time() - start

    setattr(owner, attribute, counted)
    try:
        yield
    finally:
        setattr(owner, attribute, function)


def measure(source: Path, options: dict[str, Any]) -> tuple[ConversionResult, dict[str, float]]:
    """Convert a checkpoint; return the result and the CPU seconds of each step.

    The seconds also contain `all`, the CPU time of the process, and `wall`, the elapsed time.
    """
    for name in ("Q4_K", "Q6_K"):
        CODECS[name].quantize(np.ones((2, 256), np.float32))
    spent: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory(dir=source.parent) as folder, ExitStack() as stack:
        for step in STEPS:
            stack.enter_context(timed(spent, *step))
        cpu, wall = time.process_time(), time.perf_counter()
        result = convert(source, Path(folder) / "package", **options)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result, {name: spent[name] for name, _, _ in STEPS} | {"all": cpu, "wall": wall}


def main() -> None:
    """Make a checkpoint, convert it and print the CPU time of each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm-135m")
    parser.add_argument("--quantize", default="q4_k_m")
    parser.add_argument("--workers", type=int, default=1, help="threads of the conversion")
    parser.add_argument("--work", type=Path, help="folder for temporary files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        source = Path(folder) / options.shape
        synthesize(SHAPES[options.shape], source)
        result, seconds = measure(
            source, {"quantize": options.quantize, "workers": options.workers}
        )
    for name, spent in seconds.items():
        print(f"{spent:8.2f} s {100 * spent / seconds['all']:5.0f} %  {name}")
    rate = result.parameters / 1e6
    print(
        f"million weights per second: {rate / seconds['all']:.0f} per core, "
        f"{rate / seconds['wall']:.0f} in all"
    )
    shown = {name.strip(): round(spent, 3) for name, spent in seconds.items()}
    print(json.dumps({"benchmark": "convert", "shape": options.shape, "seconds": shown}))


if __name__ == "__main__":
    main()
