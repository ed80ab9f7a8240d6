"""`rdrr diff`: the differences between two packages, tensor by tensor and field by field."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rdrr.cli._console import console, print_json, table
from rdrr.cli._invocation import READS_LOCATION
from rdrr.cli._options import FollowLinksFlag, JsonFlag

if TYPE_CHECKING:
    from rich.console import Console

    from rdrr.difference import Difference, TensorDifference
    from rdrr.evaluate import EmbeddingSimilarity


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
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings",
            help="Also run both, and print how alike their embeddings of some sentences are.",
        ),
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
        open_package(first, follow_links=follow_links) as left,
        open_package(second, follow_links=follow_links) as right,
    ):
        difference = compare_packages(left, right)
    similarity = _similarity(first, second, follow_links=follow_links) if embeddings else None
    if json:
        more = {} if similarity is None else {"embeddings": asdict(similarity)}
        print_json({**difference.as_dict(), **more})
    else:
        _show(difference, all_tensors=all_tensors)
        if similarity is not None:
            console().print(
                f"cosine similarity of the embeddings of {similarity.texts} sentences: at least "
                f"{similarity.least:.6f}, mean {similarity.mean:.6f}"
            )
    return 0 if difference.is_same_model else 1


def _similarity(first: str, second: str, *, follow_links: bool) -> EmbeddingSimilarity:
    """Run two packages, and return how alike their embeddings are."""
    import rdrr
    from rdrr.evaluate import compare_embeddings

    with (
        rdrr.load(first, follow_links=follow_links) as left,
        rdrr.load(second, follow_links=follow_links) as right,
    ):
        return compare_embeddings(left, right)


def _show(difference: Difference, *, all_tensors: bool) -> None:
    out = console()
    _show_fields(out, difference)
    for names, which in ((difference.only_first, "first"), (difference.only_second, "second")):
        for name in names:
            out.print(f"only in the {which}: {name}", soft_wrap=True)
    shown = [tensor for tensor in difference.tensors if all_tensors or _is_worth_showing(tensor)]
    if shown:
        columns = ("tensor", "stored as", "relative error", "largest", "at", "verdict")
        rows = [_row(tensor) for tensor in shown]
        out.print(table(columns, rows, right=("relative error", "largest")))
    counts = Counter(tensor.verdict for tensor in difference.tensors)
    parts = [f"{count} {word}" for word, count in counts.items()]
    verdict = "the same model" if difference.is_same_model else "not the same model"
    style = "bold green" if difference.is_same_model else "bold red"
    out.print(f"{verdict}: {', '.join(parts) or 'no tensor in common'}", style=style)


def _is_worth_showing(tensor: TensorDifference) -> bool:
    return tensor.verdict != "same bytes" and (
        tensor.verdict != "same values" or len(set(tensor.dtypes)) > 1
    )


def _show_fields(out: Console, difference: Difference) -> None:
    if difference.fields:
        columns = ("field", "first", "second", "")
        rows = [
            (row.field, _value(row.first), _value(row.second), "storage" if row.is_storage else "")
            for row in difference.fields
        ]
        out.print(table(columns, rows))
        out.print()


def _row(tensor: TensorDifference) -> tuple[str, ...]:
    stored = [" ".join(pair) for pair in zip(tensor.dtypes, tensor.layouts, strict=True)]
    kinds = stored[0] if stored[0] == stored[1] else " | ".join(stored)
    if tensor.verdict == "shape":
        shapes = " | ".join("x".join(map(str, shape)) for shape in tensor.shapes)
        return tensor.name, kinds, "", "", shapes, tensor.verdict
    error = (
        "not a number" if tensor.relative_rmse is None else f"{100 * tensor.relative_rmse:.4g} %"
    )
    largest = "" if tensor.largest is None else f"{tensor.largest:.4g}"
    place = "" if tensor.where is None else f"{tensor.where[0]}, {tensor.where[1]}"
    return tensor.name, kinds, error, largest, place, tensor.verdict


def _value(value: object) -> str:
    return "-" if value is None else str(value)
