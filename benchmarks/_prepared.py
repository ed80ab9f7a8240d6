"""What a benchmark of decoding is run on: a checkpoint of a shape, packages of it, a GGUF file."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shapes import SHAPES
from synthesize import synthesize

LAYOUTS: Mapping[str, dict[str, Any]] = {
    "row": {},
    "fused": {"fuse_gate_up": True},
    "column": {"transpose_weights": True, "fuse_gate_up": True},
}
"""Packages by name: the options of the conversion that makes each."""


class Clock:
    """Says on stderr how long each step of the preparation took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 2)
        print(f"{name}: {self.seconds[name]} s", file=sys.stderr, flush=True)


def prepare(options: argparse.Namespace, work: Path, clock: Clock) -> dict[str, Path]:
    """Write the checkpoint and its packages unless they are there already; packages by layout."""
    from rdrr_converter.convert import convert

    checkpoint = work / options.shape
    if not (checkpoint / "model.safetensors.index.json").is_file():
        with clock.step("synthesize"):
            synthesize(SHAPES[options.shape], checkpoint)
    packages = {}
    for layout in options.layouts.split(","):
        packages[layout] = work / f"{options.shape}-{options.quantize}-{layout}"
        if not packages[layout].exists():
            with clock.step(f"convert {layout}"):
                convert(
                    checkpoint,
                    packages[layout],
                    quantize=options.quantize,
                    workers=os.cpu_count(),
                    **LAYOUTS[layout],
                )
    return packages


def prepare_gguf(options: argparse.Namespace, work: Path, clock: Clock) -> Path:
    """The GGUF file of the checkpoint, rows that are not whole blocks stored as llama.cpp does."""
    from _gguf import write_gguf
    from rdrr_converter.convert import convert
    from rdrr_manifests.package import open_package

    path = work / f"{options.shape}-{options.quantize}.gguf"
    if path.is_file():
        return path
    folder = work / f"{options.shape}-{options.quantize}-row"
    rows = SHAPES[options.shape].tensors()
    uneven = any(len(shape) == 2 and shape[1] % 256 for _, shape in rows)
    if (uneven and options.quantize == "q4_k_m") or not folder.exists():
        folder = folder.with_name(f"{options.shape}-{options.quantize}-ggml")
        with clock.step("convert for the peer"):
            convert(
                work / options.shape,
                folder,
                quantize=options.quantize,
                k_tail="ggml",
                overwrite=True,
                workers=os.cpu_count(),
            )
    with clock.step("gguf"):
        write_gguf(open_package(folder), path)
    return path
