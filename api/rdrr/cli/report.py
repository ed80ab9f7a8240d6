"""`rdrr report`: the storage and the error of every tensor, in the terminal or as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rdrr._units import format_size
from rdrr._usual_errors import usual_error
from rdrr.cli._console import console, note, print_json, table
from rdrr.cli._options import FollowLinksFlag, JsonFlag, PackagePath
from rdrr.cli._wording import flags_of_options, in_flags

if TYPE_CHECKING:
    from rich.console import Console

    from rdrr._report_view import Cell, ReportView


def report(
    path: PackagePath,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="Write an HTML page with charts to this file; it is self-contained."
        ),
    ] = None,
    worst: Annotated[
        int,
        typer.Option(min=0, help="Number of tensors to list, those with the largest error first."),
    ] = 8,
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
) -> int:
    """Show how every tensor of a package is stored, and the error that this causes."""
    from rdrr._report_view import read_report, view

    conversion = read_report(path, follow_links=follow_links)
    if html is not None:
        _write_page(view(conversion), html)
    if json:
        print_json(conversion.model_dump(mode="json", by_alias=True, exclude_none=True))
    elif html is None:
        _show(view(conversion), worst)
    return 0


def _write_page(report: ReportView, path: Path) -> None:
    from rdrr_format.stores import replace_file

    from rdrr._report_html import render

    replace_file(path, render(report).encode())
    note(f"page written to {path}")


def _show(report: ReportView, worst: int) -> None:
    from rdrr._report_view import measurement_lines

    out = console()
    head = report.report
    out.print(
        f"{head.model_id} ({head.architecture} from {head.source_format}): "
        f"{head.parameters / 1e6:.1f} million weights, {format_size(head.total_size)}, "
        f"{report.bits:.2f} bits per weight, error {_percent(report.mean_error)}",
        style="bold",
        soft_wrap=True,
    )
    for text in measurement_lines(head.measured):
        out.print(text, soft_wrap=True)
    _section(
        out,
        ("dtype", "tensors", "size", "bits per weight", "worst error", "usual"),
        [
            (
                row.dtype,
                row.tensors,
                format_size(row.bytes),
                f"{row.bits:.2f}",
                _percent(row.worst),
                usual_error(row.dtype),
            )
            for row in report.types
        ],
        right=("tensors", "size", "bits per weight", "worst error", "usual"),
    )
    if report.largest_error:
        _section(
            out,
            ("part", "stored as", "least error", "largest", "in layer", "worst block"),
            [_part(part, report.row(part)) for part in report.parts],
            right=("least error", "largest", "in layer", "worst block"),
        )
    if report.worst and worst:
        _section(
            out,
            ("tensors with the largest error", "stored as", "error", "worst block", "at", "why"),
            _worst_rows(report, worst),
            right=("error", "worst block"),
        )
    for tensor in report.overflowed:
        out.print(
            f"{tensor.name}: {tensor.why}",
            style="yellow",
            soft_wrap=True,
        )
    for text in head.notes:
        out.print(f"note: {text}", style="yellow", soft_wrap=True)


def _section(
    out: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[str],
) -> None:
    out.print()
    out.print(table(columns, rows, right=right))


def _part(part: str, cells: tuple[Cell, ...]) -> tuple[object, ...]:
    errors = [cell.error for cell in cells]
    most = max(cells, key=lambda cell: cell.error)
    kinds = ", ".join(dict.fromkeys(cell.dtype for cell in cells))
    block = max(cell.block_error for cell in cells)
    return part, kinds, _percent(min(errors)), _percent(most.error), most.layer, _percent(block)


def _worst_rows(report: ReportView, count: int) -> list[tuple[object, ...]]:
    from rdrr_converter.options import ConvertOptions

    from rdrr._report_view import block_error

    flags = flags_of_options(ConvertOptions)
    return [
        (
            tensor.name,
            f"{tensor.dtype} {tensor.layout}",
            _percent(tensor.relative_rmse),
            _percent(block_error(tensor)),
            f"row {tensor.worst_block.row}, block {tensor.worst_block.block}"
            if tensor.worst_block
            else "",
            in_flags(tensor.why, flags),
        )
        for tensor in report.worst[:count]
    ]


def _percent(error: float) -> str:
    return f"{100 * error:.2f} %" if error else "none"
