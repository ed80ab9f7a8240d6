"""Measure the peak anonymous memory of conversions, beyond that of an idle interpreter with torch.

    python benchmarks/bench_memory.py --shape llama-3b --others qwen3-0.6b

A checkpoint of `--shape` (llama-3b: 6.4 GB) is converted with several numbers of workers. A
checkpoint of `--others` is converted with further options, and from a PyTorch and a GGUF file. Each
conversion runs in its own process, whose anonymous memory is read from /proc every 20 ms. Mapped
files do not count, since the system reclaims their pages when it needs memory. Linux only. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shapes import SHAPES
from synthesize import synthesize

LIMIT = 1 << 30  # bytes that a conversion may use beyond the idle interpreter
INTERVAL = 0.02  # seconds between two readings
IDLE = "import sys, torch; print('ready', flush=True); sys.stdin.read()"
CONVERT = """
import json, sys, torch
from rdrr_converter.convert import convert
source, destination, options = json.loads(sys.argv[1])
convert(source, destination, overwrite=True, **options)
"""


@dataclass(frozen=True)
class Case:
    """A conversion to measure.

    Attributes:
        name: Name in the table.
        kind: Kind of checkpoint: `safetensors`, `pytorch` or `gguf`.
        options: Options of `convert`.
    """

    name: str
    kind: str = "safetensors"
    options: Mapping[str, Any] = field(default_factory=dict)


COLUMN = {"q4k_layout": "column", "fuse_gate_up": True}
OTHERS = (
    Case("column, gate and up fused", options={**COLUMN, "workers": 2}),
    Case("column, gate and up fused, 8 workers", options={**COLUMN, "workers": 8}),
    Case("flat", options={"q4k_layout": "flat", "workers": 8}),
    Case("transposed F32", options={"quantize": "f32", "transpose_weights": True, "workers": 8}),
    Case("zstd, blake3", options={"compress": "zstd", "hash_algorithm": "blake3", "workers": 8}),
    Case("PyTorch", "pytorch", {"workers": 8}),
    Case("GGUF, blocks copied", "gguf", {"workers": 8}),
    Case("GGUF, blocks decoded", "gguf", {"quantize": "q8_0", "workers": 8}),
    Case("GGUF, blocks decoded, column", "gguf", {**COLUMN, "quantize": "q8_0", "workers": 8}),
)


def anonymous_bytes(pid: int) -> int:
    """Return the bytes of anonymous memory of a process, or 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def idle_bytes() -> int:
    """Return the anonymous memory, in bytes, of an interpreter that has only imported torch."""
    command = [sys.executable, "-c", IDLE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        idle = anonymous_bytes(process.pid)
        process.communicate("")
    return idle


def peak_bytes(source: Path, destination: Path, options: Mapping[str, Any]) -> int:
    """Convert in a new process and return its largest reading of anonymous memory, in bytes.

    Raises:
        RuntimeError: The conversion failed.
    """
    order = json.dumps([str(source), str(destination), dict(options)])
    most = 0
    with subprocess.Popen([sys.executable, "-c", CONVERT, order]) as process:
        while process.poll() is None:
            most = max(most, anonymous_bytes(process.pid))
            time.sleep(INTERVAL)
    if process.returncode:
        raise RuntimeError(f"the conversion failed with exit code {process.returncode}")
    return most


def checkpoint(work: Path, shape: str, kind: str) -> Path:
    """Return a checkpoint of a shape and kind; make it if it is missing."""
    folder = work / shape
    if not (folder / "config.json").exists():
        synthesize(SHAPES[shape], folder)
    if kind == "safetensors":
        return folder
    converted = work / f"{shape}-{kind}"
    if not converted.exists():
        {"pytorch": _write_pytorch, "gguf": _write_gguf}[kind](folder, converted)
    return converted


def _write_pytorch(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file

    target.mkdir()
    state = {
        name: tensor
        for file in sorted(source.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    torch.save(state, target / "pytorch_model.bin")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, target / name)


def _write_gguf(source: Path, target: Path) -> None:
    from _gguf import write_gguf
    from rdrr_converter.convert import convert
    from rdrr_manifests.package import open_package

    target.mkdir()
    convert(source, target / "package")
    write_gguf(open_package(target / "package"), target / "model.gguf")
    shutil.rmtree(target / "package")


def measure(options: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """Measure each case, print its line and yield its figures for JSON."""
    base = idle_bytes()
    print(f"idle interpreter with torch: {base / 2**20:.0f} MiB")
    cases = [
        (options.shape, Case(f"{workers} workers", options={"workers": workers}))
        for workers in options.workers
    ]
    cases += [(options.others, case) for case in OTHERS if options.others]
    for shape, case in (pair for pair in cases if options.only in pair[1].name):
        source = checkpoint(work, shape, case.kind)
        size = sum(path.stat().st_size for path in source.iterdir())
        start = time.perf_counter()
        above = peak_bytes(source, work / "package", case.options) - base
        seconds = time.perf_counter() - start
        row = {"shape": shape, "case": case.name, "source_bytes": size, "peak_bytes": above}
        print(
            f"{shape:12} {case.name:38} {size / 2**30:6.2f} GiB  peak {above / 2**20:6.0f} MiB"
            f"  {seconds:6.1f} s",
            flush=True,
        )
        yield row
        shutil.rmtree(work / "package")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shape", choices=tuple(SHAPES), default="llama-3b")
    add("--others", choices=tuple(SHAPES), help="also measure the other cases, with this shape")
    add(
        "--workers",
        type=lambda text: [int(word) for word in text.split(",")],
        default=[1, 2, 8],
        help="numbers of threads, separated by commas",
    )
    add("--only", default="", help="measure only the cases whose name contains this")
    add("--work", type=Path, help="keep checkpoints here for the next run")
    return parser.parse_args(arguments)


def main() -> None:
    """Run the command line and report whether every peak is within the limit."""
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.work) as scratch:
        if options.work:
            options.work.mkdir(parents=True, exist_ok=True)
        rows = list(measure(options, options.work or Path(scratch)))
    worst = max(row["peak_bytes"] for row in rows)
    result = {"benchmark": "memory", "worst_bytes": worst, "within_limit": worst <= LIMIT}
    print(json.dumps({**result, "results": rows}))


if __name__ == "__main__":
    main()
