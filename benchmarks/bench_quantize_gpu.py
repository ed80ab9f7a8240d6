"""Compare encoding K-quants on a GPU with the CPU: bits, speed, and whole conversions.

    python benchmarks/bench_quantize_gpu.py --devices wgpu,cuda --shape llama-1b

Blocks are compared bit for bit, packages file by file. Speeds are in millions of weights per
second of wall time, the best of several rounds: on the GPU for the computation alone and with the
transfers of float32 and of bfloat16 weights, on the CPU for the codecs on all cores. Each
conversion runs in its own process, so that its seconds include imports and opening the device; its
memory is anonymous memory, read every 20 ms. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bench_memory import INTERVAL, anonymous_bytes
from rdrr_converter.devices import BLOCK, BlockDevice
from rdrr_converter.devices.torch_device import TorchDevice
from rdrr_converter.devices.webgpu import WebGpuDevice
from rdrr_format.codecs import CODECS, bf16_to_f32, f32_to_bf16
from shapes import SHAPES
from synthesize import synthesize

Floats = npt.NDArray[np.float32]

REPEATS = 20
"""Repetitions of the computation in one submission, whose own time then hardly matters."""

CONVERT = """
import json, sys, time
start = time.perf_counter()
from rdrr_converter.convert import convert
source, destination, options = json.loads(sys.argv[1])
ends = {}
def note(event):
    ends[event.stage] = time.perf_counter() - start
result = convert(source, destination, overwrite=True, progress=note, **options)
ends["all"] = time.perf_counter() - start
print(json.dumps({"ends": ends, "blocks": result.as_dict()["encoded_blocks"]}))
"""


def fastest(action: Callable[[], object], rounds: int) -> float:
    """Return the seconds of the fastest of several rounds, after one untimed warm-up."""
    action()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def compute_seconds(device: BlockDevice, dtype: str, weights: Floats, rounds: int) -> float:
    """Return the seconds of the computation alone, without transfers of weights.

    Args:
        device: Device with room for all blocks.
        dtype: Block type.
        weights: Weights, float32 [blocks, 256].
        rounds: Number of rounds, of which the fastest counts.
    """
    if isinstance(device, WebGpuDevice):
        device.upload(dtype, [weights])
        runs = [
            fastest(partial(device.run, dtype, len(weights), times), rounds)
            for times in (1, REPEATS + 1)
        ]
        return (runs[1] - runs[0]) / REPEATS
    import torch

    assert isinstance(device, TorchDevice)
    device.upload([weights])

    def compute() -> None:
        with torch.no_grad():
            device.run(dtype, len(weights))[1].cpu()

    return fastest(compute, rounds)


def compare(device: BlockDevice, dtype: str, weights: Floats, rounds: int) -> dict[str, Any]:
    """Count the blocks that differ from the CPU's, and measure the rates of a device.

    Blocks that the device flags are not compared: conversions encode them on the CPU.
    """
    halves = f32_to_bf16(weights)
    different = flagged_blocks = 0
    for part, values in ((weights, weights), (halves, bf16_to_f32(halves))):
        encoded, flagged = device.encode(dtype, [part])
        expected = CODECS[dtype].quantize(values)
        different += int(np.count_nonzero((encoded != expected).any(axis=1) & ~flagged))
        flagged_blocks += int(np.count_nonzero(flagged))
    seconds = {
        "alone": compute_seconds(device, dtype, weights, rounds),
        "from float32": fastest(lambda: device.encode(dtype, [weights]), rounds),
        "from bfloat16": fastest(lambda: device.encode(dtype, [halves]), rounds),
    }
    return {"different": different, "flagged": flagged_blocks, "rates": _rates(weights, seconds)}


def codec_rates(dtype: str, weights: Floats, rounds: int) -> dict[str, float]:
    """Measure the rate of the CPU codec on all cores."""
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:

        def everywhere() -> None:
            for _ in pool.map(CODECS[dtype].quantize, np.array_split(weights, 4 * cores)):
                pass

        seconds = {f"{cores} cores": fastest(everywhere, rounds)}
    return _rates(weights, seconds)


def _rates(weights: Floats, seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(weights.size / spent / 1e6, 1) for name, spent in seconds.items()}


def measure_conversion(source: Path, destination: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Convert in a new process; return its seconds, peak memory and a digest of the package."""
    order = json.dumps([str(source), str(destination), options])
    start, most = time.perf_counter(), 0
    with subprocess.Popen(
        [sys.executable, "-c", CONVERT, order], stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            most = max(most, anonymous_bytes(process.pid))
            time.sleep(INTERVAL)
        spent = time.perf_counter() - start
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    if process.returncode:
        raise RuntimeError(f"the conversion failed with exit code {process.returncode}")
    report = json.loads(lines[-1])
    ends = report["ends"]
    return {
        "seconds": round(spent, 2),
        "scanned": round(ends["scan"], 2),
        "write": round(ends["write"] - ends["scan"], 2),
        "verify": round(ends["verify"] - ends["write"], 2),
        "peak_mib": round(most / 2**20),
        "blocks": report["blocks"],
        "digest": digest(destination),
    }


def digest(package: Path) -> str:
    """Return 12 hexadecimal digits of a SHA-256 over the files of a package and their names."""
    hasher = hashlib.sha256()
    for path in sorted(package.iterdir()):
        hasher.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()[:12]


def convert_all(shape: str, work: Path, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each case.

    The first case runs twice and the first run is dropped, because it reads the source from disk.
    """
    source = work / shape
    if not (source / "config.json").exists():
        synthesize(SHAPES[shape], source)
    rows = []
    for case in (cases[0], *cases):
        row = {"options": case, **measure_conversion(source, work / "package", case)}
        rows.append(row)
        print(
            f"{row['seconds']:7.2f} s (to the end of the scan {row['scanned']}, write "
            f"{row['write']}, verify {row['verify']}), {row['peak_mib']} MiB, {row['digest']}, "
            f"{case} {row['blocks']}",
            flush=True,
        )
    return rows[1:]


def open_all(names: Sequence[str], options: argparse.Namespace) -> dict[str, BlockDevice]:
    """Open the devices and return them by name."""
    size = {"capacity": options.blocks} if options.blocks else {}
    makers: dict[str, Callable[[], BlockDevice]] = {
        "wgpu": lambda: WebGpuDevice(options.adapter, **size),
        "cuda": lambda: TorchDevice("cuda", **size),
        "torch on the CPU": lambda: TorchDevice("cpu", **size),
    }
    return {name: makers[name]() for name in names}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--devices",
        type=lambda text: text.split(","),
        default=["wgpu"],
        help="devices to measure, separated by commas: wgpu, cuda, torch on the CPU",
    )
    add("--adapter", help="use the adapter whose name contains this")
    add(
        "--types",
        type=lambda text: text.split(","),
        default=["Q4_K", "Q5_K", "Q6_K"],
        help="block types to measure",
    )
    add(
        "--blocks",
        type=int,
        help="blocks of 256 weights per submission; by default as in conversions",
    )
    add("--rounds", type=int, default=5, help="rounds, of which the best counts")
    add("--shape", choices=tuple(SHAPES), help="also convert a checkpoint of this shape")
    add("--workers", type=int, default=os.cpu_count(), help="threads of conversions")
    add("--work", type=Path, help="folder for the checkpoint and the packages")
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "quantize_gpu", "types": [], "conversions": []}
    random = np.random.default_rng(0)
    devices = open_all(options.devices, options)
    for dtype in options.types:
        for name, device in devices.items():
            weights = random.standard_normal((device.capacity, BLOCK), np.float32) * 0.02
            row = compare(device, dtype, weights, options.rounds)
            print(f"{dtype} {name} ({device.name}), {device.capacity} blocks: {row}", flush=True)
            result["types"].append({"dtype": dtype, "device": name, **row})
        rates = codec_rates(dtype, weights, options.rounds)
        print(f"{dtype} codecs: {rates}", flush=True)
        result["types"].append({"dtype": dtype, "device": "cpu", "rates": rates})
    for device in devices.values():
        device.close()
    if options.shape:
        cases: list[dict[str, Any]] = [{"workers": options.workers}]
        for name in options.devices:
            adapter = options.adapter if name == "wgpu" else None
            cases.append({"workers": options.workers, "device": name, "adapter": adapter})
        with tempfile.TemporaryDirectory(dir=options.work) as scratch:
            result["conversions"] = convert_all(options.shape, Path(scratch), cases)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
