"""`rdrr diff`: the differences between two packages, tensor by tensor and field by field."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from rdrr.cli._console import console, print_json, table
from rdrr.cli._invocation import READS_LOCATION
from rdrr.cli._options import FollowLinksFlag, JsonFlag

if TYPE_CHECKING:
    from rich.console import Console

    from rdrr.difference import Difference, TensorDifference


def diff(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="The first package: a folder, a URL, or org/name on the hub.",
            show_default=False,
        ),
        READS_LOCATION,
    ],
    second: Annotated[
        str,
        typer.Argument(metavar="B", help="The package to compare it with.", show_default=False),
        READS_LOCATION,
    ],
    all_tensors: Annotated[
        bool, typer.Option("--all", help="Also list the tensors that are equal.")
    ] = False,
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
) -> int:
    """Compare two packages. The exit code is 0 if they hold the same model, 1 if not.

    Only values and configuration count. How they are stored is shown, but does not count: layouts,
    fused matrices, types that hold the same values, kernel hints and names.
    """
    from rdrr_manifests.package import open_package

    from rdrr.difference import compare_packages

    with (
        open_package(first, follow_links=follow_links) as one,
        open_package(second, follow_links=follow_links) as two,
    ):
        found = compare_packages(one, two)
    if json:
        print_json(found.as_dict())
    else:
        _show(found, all_tensors=all_tensors)
    return 0 if found.is_same_model else 1


def _show(found: Difference, *, all_tensors: bool) -> None:
    out = console()
    _show_fields(out, found)
    for names, which in ((found.only_first, "first"), (found.only_second, "second")):
        for name in names:
            out.print(f"only in the {which}: {name}", markup=False, soft_wrap=True)
    shown = [one for one in found.tensors if all_tensors or _is_worth_showing(one)]
    if shown:
        columns = ("tensor", "stored as", "relative error", "largest", "at", "verdict")
        rows = [_row(one) for one in shown]
        out.print(table(columns, rows, right=("relative error", "largest")))
    counts = Counter(one.verdict for one in found.tensors)
    parts = [f"{count} {word}" for word, count in counts.items()]
    verdict = "the same model" if found.is_same_model else "not the same model"
    style = "bold green" if found.is_same_model else "bold red"
    out.print(f"{verdict}: {', '.join(parts) or 'no tensor in common'}", style=style)


def _is_worth_showing(one: TensorDifference) -> bool:
    return one.verdict != "same bytes" and (
        one.verdict != "same values" or len(set(one.dtypes)) > 1
    )


def _show_fields(out: Console, found: Difference) -> None:
    if found.fields:
        columns = ("field", "first", "second", "")
        rows = [
            (one.field, _value(one.first), _value(one.second), "storage" if one.is_storage else "")
            for one in found.fields
        ]
        out.print(table(columns, rows))
        out.print()


def _row(one: TensorDifference) -> tuple[str, ...]:
    stored = [" ".join(pair) for pair in zip(one.dtypes, one.layouts, strict=True)]
    kinds = stored[0] if stored[0] == stored[1] else " | ".join(stored)
    if one.verdict == "shape":
        shapes = " | ".join("x".join(map(str, shape)) for shape in one.shapes)
        return one.name, kinds, "", "", shapes, one.verdict
    error = "not a number" if one.relative_rmse is None else f"{100 * one.relative_rmse:.4g} %"
    largest = "" if one.largest is None else f"{one.largest:.4g}"
    place = "" if one.where is None else f"{one.where[0]}, {one.where[1]}"
    return one.name, kinds, error, largest, place, one.verdict


def _value(value: object) -> str:
    return "-" if value is None else str(value)
