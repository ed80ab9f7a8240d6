"""`rdrr classify`: the probabilities of the labels of texts."""

from __future__ import annotations

from typing import Annotated

import typer

from rdrr._load_options import LoadOptions
from rdrr.cli._console import announce, console, facts, print_json
from rdrr.cli._flags import with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._progress import status

_SHOWN = 4
"""Labels of each text that are shown to people, the most probable first."""


@with_flags
def classify(
    path: PackagePath,
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="The texts.", show_default=False)
    ],
    *,
    load: LoadOptions,
    json: JsonFlag = False,
) -> int:
    """Compute the probabilities of texts' labels with a model that has a classification head."""
    import rdrr

    with status("loading the model", hidden=json):
        opened = rdrr.load(path, options=load)
    with opened as model:
        announce(model, path)
        found = model.classify(texts)
    if json:
        print_json({"texts": len(found), "probabilities": found})
    else:
        rows = [(text, _first(one)) for text, one in zip(texts, found, strict=True)]
        console().print(facts(rows))
    return 0


def _first(probabilities: dict[str, float]) -> str:
    """Return the most probable labels of a text."""
    ordered = sorted(probabilities.items(), key=lambda item: -item[1])
    more = ", ..." if len(ordered) > _SHOWN else ""
    return ", ".join(f"{label} {value:.4f}" for label, value in ordered[:_SHOWN]) + more
