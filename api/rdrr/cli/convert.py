"""`rdrr convert` and `convert-cli`: a checkpoint becomes a package."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rdrr_format.errors import UsageError

from rdrr.cli._console import console, note, print_json, table
from rdrr.cli._options import Adapter, JsonFlag, KernelHints, not_empty, split_hints
from rdrr.cli._progress import progress_bar
from rdrr.cli._units import format_size, parse_size

if TYPE_CHECKING:
    from rdrr_converter.report import ConversionResult, TensorReport
    from rich.console import Console


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            callback=not_empty,
            help="A Hugging Face checkpoint (folder or file of weights) or a GGUF file; a path, "
            "a URL (s3://, https://...) or hf://org/name[@revision][/file].",
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST",
            callback=not_empty,
            help="Folder to make, or its URL on an object store.",
        ),
    ],
    quantize: Annotated[
        Literal[
            "q4_k_m",
            "q4_k_s",
            "q5_k_m",
            "q5_k_s",
            "q6_k",
            "q4_0",
            "q5_0",
            "q8_0",
            "f16",
            "f32",
        ],
        typer.Option(help="Storage of the weights."),
    ] = "q4_k_m",
    q4k_layout: Annotated[
        Literal["row", "column", "flat"] | None,
        typer.Option(help="Order of quantized blocks; row unless weights are transposed."),
    ] = None,
    transpose_weights: Annotated[
        bool, typer.Option("--transpose-weights", help="Store matmul weights as [inputs, outputs].")
    ] = False,
    fuse_gate_up: Annotated[
        bool, typer.Option("--fuse-gate-up", help="Store gate and up projections as one matrix.")
    ] = False,
    k_tail: Annotated[
        Literal["pad", "ggml", "auto"],
        typer.Option(help="Rows that are not whole blocks: pad them, or use ggml's other types."),
    ] = "pad",
    quality: Annotated[
        Literal["ref", "best"],
        typer.Option(help="ref: ggml's blocks. best: a longer search for less error."),
    ] = "ref",
    profile: Annotated[
        Literal["rdrr", "doppler"],
        typer.Option(help="doppler: only what the public runtime loads (Q4_K in rows, F16)."),
    ] = "rdrr",
    imatrix: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Importance matrix of llama.cpp, GGUF or .dat."),
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="REGEX=TYPE",
            help="Type of the tensors whose name it finds; repeatable, the last match wins.",
        ),
    ] = None,
    kernel_hint: KernelHints = None,
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes of a full shard.")
    ] = "64MiB",
    align: Annotated[
        str, typer.Option(metavar="SIZE", help="Tensors begin at multiples of it; a power of two.")
    ] = "256",
    hash_algorithm: Annotated[
        Literal["sha256", "blake3"], typer.Option("--hash", help="Hash of the shards.")
    ] = "sha256",
    compress: Annotated[
        str | None,
        typer.Option(metavar="zstd[:LEVEL]", help="Compress the shards; levels are 1 to 22."),
    ] = None,
    model_id: Annotated[
        str | None, typer.Option(help="Name of the package; the source's unless given.")
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="Architecture, whatever the configuration says.")
    ] = None,
    lora: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="PEFT adapter (folder or URL) to merge into the weights."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and write nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the package that is there.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads; the bytes do not depend on it.", show_default="cores"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on where a conversion to DST was killed."),
    ] = False,
    engine: Annotated[
        Literal["threads", "ray"],
        typer.Option(help="Who encodes: threads here, or the workers of a Ray cluster."),
    ] = "threads",
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Ray cluster; one is started without it.")
    ] = None,
    device: Annotated[
        Literal["cpu", "wgpu", "cuda"],
        typer.Option(help="Who encodes blocks of K-quants: a GPU gives the same bytes."),
    ] = "cpu",
    adapter: Adapter = None,
    json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
) -> int:
    """Make a package from a checkpoint. DST appears only when it is complete."""
    if json and quiet:
        raise UsageError("--json and --quiet contradict each other")
    from rdrr_converter.overrides import split_overrides

    import rdrr

    start = time.perf_counter()
    with progress_bar(hidden=quiet) as progress:
        result = rdrr.convert(
            source,
            destination,
            quantize=quantize,
            q4k_layout=q4k_layout,
            transpose_weights=transpose_weights,
            fuse_gate_up=fuse_gate_up,
            k_tail=k_tail,
            quality=quality,
            profile=profile,
            imatrix=imatrix,
            tensor_types=split_overrides(tensor_type or ()),
            kernel_hints=split_hints(kernel_hint),
            shard_size=parse_size(shard_size),
            align=parse_size(align),
            hash_algorithm=hash_algorithm,
            compress=compress,
            model_id=model_id,
            arch=arch,
            lora=lora,
            dry_run=dry_run,
            overwrite=overwrite,
            workers=workers,
            resume=resume,
            engine=engine,
            ray_address=ray_address,
            device=device,
            adapter=adapter,
            progress=progress,
        )
    seconds = time.perf_counter() - start
    if json:
        print_json({**result.as_dict(), "seconds": round(seconds, 3)})
    elif not quiet:
        show(result)
        if result.reused_shards:
            note(f"{result.reused_shards} of {len(result.plan.shard_sizes)} shards were re-used")
        if device != "cpu" and not dry_run:
            note(_encoders(result, device))
        note(f"{seconds:.1f} s, {result.parameters / seconds / 1e6:.1f} million weights/s")
    return 0


def show(result: ConversionResult) -> None:
    """The summary; in a dry run the whole plan before it."""
    out = console()
    if result.dry_run:
        _show_plan(out, result)
        out.print()
    _show_totals(out, result)
    for name in result.overflowed:
        out.print(_plain(f"kept in F32, because values do not fit the type: {name}", "yellow"))
    for text in result.notes:
        out.print(_plain(f"note: {text}", "yellow"))
    shards = len(result.plan.shard_sizes)
    verb = "would be" if result.dry_run else "is"
    line = (
        f"{result.model_id} ({result.architecture}), {result.parameters / 1e6:.1f} million weights,"
        f" {verb} {format_size(result.total_size)} in {shards} shard{'s' * (shards > 1)}"
        f"{_before(result)} at {result.destination}"
    )
    out.print(_plain(line, "bold green"), soft_wrap=True)


def _encoders(result: ConversionResult, device: str) -> str:
    """Which blocks the device encoded, and which the CPU."""
    by_device, by_cpu = (result.encoded_blocks.get(name, 0) for name in (device, "cpu"))
    return f"blocks encoded: {by_device:,} by {device}, {by_cpu:,} by the CPU"


def _before(result: ConversionResult) -> str:
    """What compressed shards hold, where that differs."""
    size = result.plan.total_size
    return "" if size == result.total_size else f", {format_size(size)} uncompressed,"


def _show_totals(out: Console, result: ConversionResult) -> None:
    columns = ("dtype", "tensors", "size", "bits a weight", "worst error")
    rows = []
    for dtype, (count, size) in result.by_dtype().items():
        group = [tensor for tensor in result.tensors if tensor.dtype == dtype]
        bits = 8 * size / max(1, sum(_weights(tensor) for tensor in group))
        rows.append((dtype, count, format_size(size), f"{bits:.2f}", _worst(group)))
    out.print(table(columns, rows, right=columns[1:]))
    if result.padding:
        out.print(_plain(f"{result.padding:,} weights of padding fill the last blocks", "dim"))


def _show_plan(out: Console, result: ConversionResult) -> None:
    columns = ("tensor", "shape", "dtype", "layout", "size", "shard:offset", "why")
    rows = [
        (
            row["name"],
            " x ".join(map(str, _sequence(row["shape"]))),
            row["dtype"],
            row["layout"],
            format_size(_number(row["size"])),
            f"{row['shard']}:{row['offset']}",
            row["why"],
        )
        for row in result.plan.describe()
    ]
    out.print(table(columns, rows, right=("size", "shard:offset")))


def _worst(group: list[TensorReport]) -> str:
    """The largest relative root-mean-square error of a group, as a percentage."""
    errors = [one.relative_rmse for one in group if one.relative_rmse is not None]
    if not errors:
        return ""
    return f"{100 * max(errors):.2f} %" if max(errors) else "none"


def _weights(tensor: TensorReport) -> int:
    from math import prod

    return prod(tensor.shape)


def _sequence(value: Any) -> list[int]:
    return list(value)


def _number(value: Any) -> int:
    return int(value)


def _plain(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(text, style=style)
