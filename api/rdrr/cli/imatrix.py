"""`rdrr imatrix`: measure an importance matrix, which weighs the columns of a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rdrr._texts import read_text
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._options import (
    FollowLinksFlag,
    JsonFlag,
    PackagePath,
    TextTokens,
    WindowTokens,
)
from rdrr.cli._progress import window_progress


def imatrix(
    path: PackagePath,
    text: Annotated[
        Path,
        typer.Option(metavar="FILE", help="UTF-8 text that the model reads.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="GGUF file to create.", show_default=False)
    ],
    window: WindowTokens = 512,
    tokens: TextTokens = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Measure with gradients how much the errors of each row and column matter, "
            "which `rdrr convert --size` needs.",
        ),
    ] = False,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="Device of torch that runs the model.")
    ] = "cpu",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
) -> int:
    """Measure an importance matrix for `rdrr convert --imatrix`, with torch."""
    from rdrr.importance import measure_importance

    content = read_text(text)
    with window_progress(hidden=json) as report:
        importance = measure_importance(
            path,
            content,
            out,
            origin=text.name,
            window=window,
            limit=tokens,
            sensitivity=sensitivity,
            device=device,
            overwrite=overwrite,
            follow_links=follow_links,
            progress=report,
        )
    if json:
        print_json(importance.as_dict())
    else:
        rows = [
            ("entries", str(importance.entries)),
            ("perplexity", f"{importance.perplexity:.4f}"),
            ("predicted tokens", f"{importance.tokens:,}"),
            ("written", importance.path),
        ]
        console().print(facts(rows))
    return 0
