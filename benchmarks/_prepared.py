"""Files that benchmarks measure: a checkpoint of a shape, packages of it, and a GGUF file.

Each is made once and kept in the working folder under a name that says what it is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rdrr_converter.recipes import RecipeName
from shapes import SHAPES
from synthesize import synthesize


class Clock:
    """A clock that prints on stderr how long each step of the preparation took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 2)
        print(f"{name}: {self.seconds[name]} s", file=sys.stderr, flush=True)


def checkpoint(work: Path, shape: str, clock: Clock) -> Path:
    """Return the checkpoint of a shape, with random weights; make it unless it is there."""
    made = work / shape
    if not (made / "model.safetensors.index.json").is_file():
        with clock.step(f"synthesize {shape}"):
            synthesize(SHAPES[shape], made)
    return made


def package(
    work: Path, shape: str, name: str, clock: Clock, *, quantize: RecipeName, **options: Any
) -> Path:
    """Return a package of a shape; make it unless it is there.

    Args:
        work: Folder of all files.
        shape: Name of the shape.
        name: Name of the package among those of the shape and type.
        clock: Clock of the steps.
        quantize: Type of the weights.
        options: Further options of the conversion.
    """
    from rdrr_converter.convert import convert

    made = work / f"{shape}-{quantize}-{name}"
    if not made.exists():
        source = checkpoint(work, shape, clock)
        with clock.step(f"convert {shape} {quantize} {name}"):
            convert(source, made, quantize=quantize, workers=os.cpu_count(), **options)
    return made


def gguf_file(work: Path, shape: str, quantize: RecipeName, clock: Clock) -> Path:
    """Return a GGUF file of a shape in llama.cpp's types; make it unless it is there.

    It holds the blocks of the package `row`; only Q4_K_M of a shape whose row lengths are not
    multiples of the block size is converted again, to the types that llama.cpp falls back to.
    """
    from _gguf import write_gguf
    from rdrr_manifests.package import open_package

    made = work / f"{shape}-{quantize}.gguf"
    if not made.is_file():
        matrices = SHAPES[shape].tensors()
        uneven = any(len(size) == 2 and size[1] % 256 for _, size in matrices)
        falls_back = uneven and quantize == "q4_k_m"
        name, options = ("ggml", {"k_tail": "ggml"}) if falls_back else ("row", {})
        folder = package(work, shape, name, clock, quantize=quantize, **options)
        with clock.step(f"gguf {shape} {quantize}"):
            write_gguf(open_package(folder), made)
    return made
