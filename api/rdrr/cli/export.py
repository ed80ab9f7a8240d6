"""`rdrr export`: convert a package back to a checkpoint."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rdrr._units import format_size
from rdrr.cli._console import console, note, print_json, table
from rdrr.cli._options import FollowLinksFlag, JsonFlag, PackagePath, QuietFlag
from rdrr.cli._progress import progress_bar
from rdrr.cli._wording import in_flags

if TYPE_CHECKING:
    from rdrr_converter.export import ExportedTensor, ExportResult


_FLAGS = {"mmproj": "--mmproj"}
"""The flags that notes on an export name as arguments."""


def export(
    path: PackagePath,
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="The folder (safetensors) or file (gguf) to create.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Literal["safetensors", "gguf"] | None,
        typer.Option(
            help="Format: safetensors for transformers, gguf for llama.cpp; by default gguf if OUT "
            "ends with .gguf.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["f32", "f16", "bf16"] | None,
        typer.Option(
            help="Data type in safetensors files. Without it each tensor keeps its type, and "
            "quantized tensors become f16."
        ),
    ] = None,
    lossless: Annotated[
        bool,
        typer.Option(
            "--lossless",
            help="Fail instead of changing a value or decoding a quantized block.",
        ),
    ] = False,
    arch: Annotated[
        str | None,
        typer.Option(help="Architecture to export as, if not that of the package."),
    ] = None,
    mmproj: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the vision tower to this file, as llama.cpp reads it (gguf only). Without "
            "it the tower is left out.",
        ),
    ] = None,
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximum size of a safetensors file.")
    ] = "5GB",
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace an existing checkpoint once the new one is complete."
        ),
    ] = False,
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> int:
    """Convert a package back to a checkpoint. OUT appears only when it is complete."""
    from rdrr_converter.export import export as write

    start = time.perf_counter()
    with progress_bar(hidden=quiet or json) as progress:
        result = write(
            path,
            out,
            to=to,
            dtype=dtype,
            lossless=lossless,
            arch=arch,
            mmproj=mmproj,
            shard_size=shard_size,
            overwrite=overwrite,
            follow_links=follow_links,
            progress=progress,
        )
    seconds = time.perf_counter() - start
    if json:
        print_json({**result.as_dict(), "seconds": round(seconds, 3)})
    elif not quiet:
        _show(result)
        note(f"{seconds:.1f} s, {result.total_size / seconds / 1e6:.0f} MB/s")
    return 0


def _show(result: ExportResult) -> None:
    out = console()
    columns = ("stored as", "written as", "tensors", "size", "worst error")
    groups = Counter((tensor.stored, tensor.dtype) for tensor in result.tensors)
    rows = []
    for (stored, dtype), count in groups.most_common():
        group = [
            tensor for tensor in result.tensors if (tensor.stored, tensor.dtype) == (stored, dtype)
        ]
        size = format_size(sum(tensor.size for tensor in group))
        rows.append((stored, dtype, count, size, _worst(group)))
    out.print(table(columns, rows, right=columns[2:]))
    reasons = Counter((tensor.why, tensor.dtype) for tensor in result.tensors if tensor.why)
    for (why, dtype), count in reasons.items():
        out.print(f"note: {count} written as {dtype}: {why}", style="yellow")
    for text in result.notes:
        out.print(f"note: {in_flags(text, _FLAGS)}", style="yellow", soft_wrap=True)
    kept = "all values are exact" if result.is_lossless else "some values were rounded"
    line = f"{result.architecture}, {format_size(result.total_size)}, {kept}: {result.destination}"
    out.print(line, style="bold green", soft_wrap=True)


def _worst(group: list[ExportedTensor]) -> str:
    error = max(tensor.relative_rmse for tensor in group)
    return f"{100 * error:.2g} %" if error else "none"
