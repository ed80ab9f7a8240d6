"""`rdrr imatrix`: which columns of a model's weights matter on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rdrr._texts import read_text
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._options import FollowLinksFlag, JsonFlag, PackagePath
from rdrr.cli._progress import window_progress


def imatrix(
    path: PackagePath,
    text: Annotated[
        Path, typer.Option(metavar="FILE", help="Text in UTF-8 to read.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="GGUF file to make.", show_default=False)
    ],
    window: Annotated[int, typer.Option(min=2, help="Tokens of a window; each begins anew.")] = 512,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Use only so many tokens of the text.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file that is there.")
    ] = False,
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
) -> int:
    """Write an importance matrix for `rdrr convert --imatrix` (in torch on the CPU)."""
    from rdrr.importance import measure_importance

    content = read_text(text)
    with window_progress(hidden=json) as report:
        found = measure_importance(
            path,
            content,
            out,
            origin=text.name,
            window=window,
            limit=tokens,
            overwrite=overwrite,
            follow_links=follow_links,
            progress=report,
        )
    if json:
        print_json(found.as_dict())
    else:
        rows = [
            ("entries", str(found.entries)),
            ("perplexity", f"{found.perplexity:.4f}"),
            ("predicted", f"{found.tokens:,} tokens"),
            ("written", found.path),
        ]
        console().print(facts(rows))
    return 0
