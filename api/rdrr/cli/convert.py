"""`rdrr convert` and `convert-cli`: convert a checkpoint to a package."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rdrr_converter.options import ConvertOptions
from rdrr_format.errors import UsageError

from rdrr._units import format_size
from rdrr._usual_errors import usual_error
from rdrr.cli._console import console, note, print_json, table
from rdrr.cli._flags import with_flags
from rdrr.cli._invocation import READS_LOCATION
from rdrr.cli._options import JsonFlag, QuietFlag
from rdrr.cli._progress import progress_bar
from rdrr.cli._wording import flags_of_options, in_flags

if TYPE_CHECKING:
    from rdrr_converter.output.report import ConversionResult, TensorReport
    from rich.console import Console


@with_flags
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="The checkpoint: a Hugging Face folder, one of its weight files, or a GGUF file; "
            "as a path, a URL (s3://, https://...), hf://org/name[@revision][/file] or "
            "org/name[@revision] on the hub.",
            show_default=False,
        ),
        READS_LOCATION,
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST",
            help="The folder to create, or its URL on an object store.",
            show_default=False,
        ),
    ],
    options: ConvertOptions,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> int:
    """Convert a checkpoint to a package. DST appears only when it is complete."""
    if json and quiet:
        raise UsageError("--json and --quiet contradict each other")
    import rdrr

    start = time.perf_counter()
    with progress_bar(hidden=quiet or json) as progress:
        result = rdrr.convert(source, destination, options=options, progress=progress)
    seconds = time.perf_counter() - start
    if json:
        print_json({**result.as_dict(), "seconds": round(seconds, 3)})
    elif not quiet:
        show(result)
        if result.reused_shards:
            note(f"{result.reused_shards} of {len(result.plan.shard_sizes)} shards were reused")
        if options.device != "cpu" and not options.dry_run:
            note(_encoders(result, options.device))
        note(f"{seconds:.1f} s, {result.parameters / seconds / 1e6:.3g} million weights/s")
    return 0


def show(result: ConversionResult) -> None:
    """Print the summary of a conversion; for a dry run, the plan of every tensor comes first."""
    from rdrr._report_view import measurement_lines

    out = console()
    if result.dry_run:
        _show_plan(out, result)
        out.print()
    _show_totals(out, result)
    reasons = {tensor.name: tensor.why for tensor in result.tensors}
    for name in result.overflowed:
        out.print(_plain(f"{name}: {reasons[name]}", "yellow"))
    for text in result.notes:
        line = text if text.startswith("warning: ") else f"note: {text}"
        line = in_flags(line, flags_of_options(ConvertOptions))
        out.print(_plain(line, "yellow"))
    for text in measurement_lines(result.measured):
        out.print(_plain(text, "bold"), soft_wrap=True)
    shards = len(result.plan.shard_sizes)
    verb = "would be" if result.dry_run else "is"
    line = (
        f"{result.model_id} ({result.architecture}), {result.parameters / 1e6:.1f} million weights,"
        f" {verb} {format_size(result.total_size)} in {shards} shard{'s' * (shards > 1)}"
        f"{_before(result)} at {result.destination}"
    )
    out.print(_plain(line, "bold green"), soft_wrap=True)


def _encoders(result: ConversionResult, device: str) -> str:
    """Return how many blocks the device encoded, and how many the CPU."""
    by_device, by_cpu = (result.encoded_blocks.get(name, 0) for name in (device, "cpu"))
    return f"blocks encoded: {by_device:,} by {device}, {by_cpu:,} by the CPU"


def _before(result: ConversionResult) -> str:
    """Return the uncompressed size where the shards are compressed, otherwise nothing."""
    size = result.plan.total_size
    return "" if size == result.total_size else f", {format_size(size)} uncompressed,"


def _show_totals(out: Console, result: ConversionResult) -> None:
    columns = ("dtype", "tensors", "size", "bits per weight", "worst error", "usual")
    rows = []
    for dtype, (count, size) in result.by_dtype().items():
        group = [tensor for tensor in result.tensors if tensor.dtype == dtype]
        bits = 8 * size / max(1, sum(_weights(tensor) for tensor in group))
        rows.append(
            (dtype, count, format_size(size), f"{bits:.2f}", _worst(group), usual_error(dtype))
        )
    out.print(table(columns, rows, right=columns[1:]))
    if result.padding:
        out.print(_plain(f"{result.padding:,} padding weights fill the last blocks of rows", "dim"))


def _show_plan(out: Console, result: ConversionResult) -> None:
    columns = ("tensor", "shape", "dtype", "layout", "size", "shard:offset", "why")
    flags = flags_of_options(ConvertOptions)
    rows = [
        (
            row["name"],
            " x ".join(map(str, _sequence(row["shape"]))),
            row["dtype"],
            row["layout"],
            format_size(_number(row["size"])),
            f"{row['shard']}:{row['offset']}",
            in_flags(str(row["why"]), flags),
        )
        for row in result.plan.describe()
    ]
    out.print(table(columns, rows, right=("size", "shard:offset")))


def _worst(group: list[TensorReport]) -> str:
    """Return the largest relative root-mean-square error of a group, as a percentage."""
    errors = [tensor.relative_rmse for tensor in group if tensor.relative_rmse is not None]
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
