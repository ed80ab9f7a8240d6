"""`rdrr classify`: the probabilities of the labels of texts."""

from __future__ import annotations

from rdrr._load_options import LoadOptions
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._flags import with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._texts import Texts, first_of, open_model


@with_flags
def classify(
    path: PackagePath,
    texts: Texts,
    *,
    load: LoadOptions,
    json: JsonFlag = False,
) -> int:
    """Compute the probabilities of texts' labels with a model that has a classification head."""
    with open_model(path, load, hidden=json) as model:
        classified = model.classify(texts)
    if json:
        print_json({"texts": len(classified), "probabilities": classified})
    else:
        rows = [(text, _first(labels)) for text, labels in zip(texts, classified, strict=True)]
        console().print(facts(rows))
    return 0


def _first(probabilities: dict[str, float]) -> str:
    """Return the most probable labels of a text."""
    ordered = sorted(probabilities.items(), key=lambda item: -item[1])
    return first_of([f"{label} {value:.4f}" for label, value in ordered])
