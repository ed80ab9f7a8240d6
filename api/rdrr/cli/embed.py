"""`rdrr embed`: compute the embeddings of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rdrr._load_options import LoadOptions
from rdrr._vector_files import check_destination, write_vectors
from rdrr.cli._console import console, facts, note, print_json
from rdrr.cli._flags import with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._texts import (
    Input,
    Texts,
    Truncate,
    first_of,
    note_truncated,
    open_model,
    texts_of,
)


@with_flags
def embed(
    path: PackagePath,
    texts: Texts = None,
    *,
    file: Input = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Prompt of the package to put before each text, like query."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File (.npy or .parquet) to write the embeddings to."),
    ] = None,
    truncate: Truncate = False,
    load: LoadOptions,
    json: JsonFlag = False,
) -> int:
    """Compute the embeddings of texts with an embedding model."""
    if out is not None:
        check_destination(out)
    given = texts_of(texts, file)
    with open_model(path, load, hidden=json) as model:
        vectors = model.embed(given, prompt=prompt, truncate=truncate)
    if out is not None:
        write_vectors(out, vectors, given)
    cut = list(vectors.truncated)
    if json:
        written = {} if out is None else {"written": str(out)}
        content = {"embeddings": vectors.tolist()} if out is None else {}
        facts_of = {"texts": len(vectors), "width": vectors.shape[1], "truncated": cut}
        print_json({**facts_of, **content, **written})
        return 0
    note_truncated(cut)
    if out is not None:
        note(f"{len(vectors)} embeddings of width {vectors.shape[1]} written to {out}")
    else:
        rows = [(text, _beginning(row.tolist())) for text, row in zip(given, vectors, strict=True)]
        console().print(facts(rows))
    return 0


def _beginning(row: list[float]) -> str:
    """Return the first elements of an embedding."""
    return first_of([f"{element:.5f}" for element in row]) + f"  ({len(row)} elements)"
