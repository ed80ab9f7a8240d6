"""`rdrr rank`: how well texts answer a query."""

from __future__ import annotations

from typing import Annotated

import typer

from rdrr._load_options import LoadOptions
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._flags import with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._texts import Input, Texts, Truncate, open_model, texts_of


@with_flags
def rank(
    path: PackagePath,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The query.", show_default=False)],
    texts: Texts = None,
    *,
    file: Input = None,
    instruction: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What a text must do to answer the query."),
    ] = None,
    truncate: Truncate = False,
    load: LoadOptions,
    json: JsonFlag = False,
) -> int:
    """Score how well texts answer a query with a reranking model, the best text first."""
    given = texts_of(texts, file)
    with open_model(path, load, hidden=json) as model:
        scores = model.rank(query, given, instruction=instruction, truncate=truncate)
    if json:
        print_json({"texts": len(scores), "scores": scores})
    else:
        best = sorted(zip(given, scores, strict=True), key=lambda pair: -pair[1])
        console().print(facts([(text, f"{score:.4f}") for text, score in best]))
    return 0
