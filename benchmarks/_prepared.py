"""The files that benchmarks measure: a checkpoint of a shape, packages of it, and a GGUF file.

Each file is made once and kept in the working folder under a name that says what it is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configured_shapes import ALL_SHAPES, CONFIGURED
from rdrr_converter.recipes import RecipeName
from synthesize import synthesize


class Clock:
    """A stopwatch that prints on stderr how long each step of the preparation took.

    Attributes:
        seconds: Seconds of each step, by its name.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block and print its seconds under `name`."""
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 2)
        print(f"{name}: {self.seconds[name]} s", file=sys.stderr, flush=True)


def checkpoint(work: Path, shape: str, clock: Clock) -> Path:
    """Return the checkpoint of a shape, with random weights; make it if it is missing."""
    folder = work / shape
    if not (folder / "model.safetensors.index.json").is_file():
        with clock.step(f"synthesize {shape}"):
            synthesize(ALL_SHAPES[shape], folder)
    return folder


def package(
    work: Path, shape: str, name: str, clock: Clock, *, quantize: RecipeName, **options: Any
) -> Path:
    """Return a package of a shape; make it if it is missing.

    Args:
        work: Working folder, which holds all files.
        shape: Name of the shape, a key of `ALL_SHAPES`.
        name: Name that tells apart packages of the same shape and quantization.
        clock: Stopwatch of the preparation.
        quantize: Quantization of the weights, as in `rdrr convert --quantize`.
        options: Further options of the conversion.
    """
    from rdrr_converter.convert import convert

    folder = work / f"{shape}-{quantize}-{name}"
    if not folder.exists():
        source = checkpoint(work, shape, clock)
        with clock.step(f"convert {shape} {quantize} {name}"):
            convert(source, folder, quantize=quantize, workers=os.cpu_count(), **options)
    return folder


def gguf_file(work: Path, shape: str, quantize: RecipeName, clock: Clock) -> Path:
    """Return a GGUF file of a shape in types that llama.cpp has; make it if it is missing.

    It holds the same blocks as the package `row`. The exception is Q4_K_M of a shape whose row
    lengths are not multiples of 256: the checkpoint is then converted again, to the types that
    llama.cpp falls back to. A shape that its configuration describes is exported as by
    `rdrr export`.

    Raises:
        ConversionError: This version exports no GGUF of the architecture.
    """
    from _gguf import write_gguf
    from rdrr_converter.export import export
    from rdrr_manifests.package import open_package

    path = work / f"{shape}-{quantize}.gguf"
    if not path.is_file():
        matrices = ALL_SHAPES[shape].tensors()
        uneven = any(len(size) == 2 and size[1] % 256 for _, size in matrices)
        falls_back = uneven and quantize == "q4_k_m"
        name, options = ("ggml", {"k_tail": "ggml"}) if falls_back else ("row", {})
        folder = package(work, shape, name, clock, quantize=quantize, **options)
        with clock.step(f"gguf {shape} {quantize}"):
            if shape in CONFIGURED:
                export(folder, path, to="gguf")
            else:
                write_gguf(open_package(folder), path)
    return path
