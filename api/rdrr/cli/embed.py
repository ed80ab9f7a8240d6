"""`rdrr embed`: compute the embeddings of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rdrr_format.errors import StoreError, UsageError

from rdrr._load_options import LoadOptions
from rdrr.cli._console import console, facts, note, print_json
from rdrr.cli._flags import with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._texts import Texts, first_of, open_model


@with_flags
def embed(
    path: PackagePath,
    texts: Texts,
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Prompt of the package to put before each text, like query."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="NumPy file (.npy) to write the embeddings to."),
    ] = None,
    load: LoadOptions,
    json: JsonFlag = False,
) -> int:
    """Compute the embeddings of texts with an embedding model."""
    if out is not None and out.suffix != ".npy":
        raise UsageError("--out has another suffix than .npy", found=out)
    with open_model(path, load, hidden=json) as model:
        vectors = model.embed(texts, prompt=prompt)
    if out is not None:
        import numpy as np

        try:
            np.save(out, vectors, allow_pickle=False)
        except OSError as error:
            raise StoreError("cannot be written", where=out, found=error.strerror) from error
    if json:
        written = {} if out is None else {"written": str(out)}
        content = {"embeddings": vectors.tolist()} if out is None else {}
        print_json({"texts": len(vectors), "width": vectors.shape[1], **content, **written})
    elif out is not None:
        note(f"{len(vectors)} embeddings of width {vectors.shape[1]} written to {out}")
    else:
        rows = [(text, _beginning(row.tolist())) for text, row in zip(texts, vectors, strict=True)]
        console().print(facts(rows))
    return 0


def _beginning(row: list[float]) -> str:
    """Return the first elements of an embedding."""
    return first_of([f"{element:.5f}" for element in row]) + f"  ({len(row)} elements)"
