"""`rdrr classify`: the labels of texts, of their tokens, or the tokens of their masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rdrr._load_options import LoadOptions
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._flags import with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._texts import Input, Texts, Truncate, first_of, open_model, texts_of

if TYPE_CHECKING:
    from rdrr import Model


@with_flags
def classify(
    path: PackagePath,
    texts: Texts = None,
    *,
    file: Input = None,
    truncate: Truncate = False,
    load: LoadOptions,
    json: JsonFlag = False,
) -> int:
    """Compute the probabilities of texts' labels, of their tokens' labels, or of masked tokens.

    Which of them follows from the head that the model has.
    """
    given = texts_of(texts, file)
    with open_model(path, load, hidden=json) as model:
        key, classified = _classified(model, given, truncate=truncate)
    if json:
        print_json({"texts": len(classified), key: [_plain(result) for result in classified]})
    else:
        console().print(facts(list(_rows(key, given, classified))))
    return 0


def _classified(model: Model, texts: Sequence[str], *, truncate: bool) -> tuple[str, list[Any]]:
    """Return what the head of a model says of texts, and what it is."""
    output = model.package.manifest.inference.output
    pooling = output.embedding_postprocessor
    if pooling is None or pooling.pooling_mode != "none":
        return "probabilities", list(model.classify(texts, truncate=truncate))
    if output.classifier is not None:
        return "tokens", list(model.classify_tokens(texts, truncate=truncate))
    return "masks", list(model.fill_masks(texts, truncate=truncate))


def _plain(result: Any) -> Any:
    """Return a result as JSON has it."""
    if isinstance(result, list):
        return [entry if isinstance(entry, dict) else asdict(entry) for entry in result]
    return result


def _rows(key: str, texts: Sequence[str], results: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for text, result in zip(texts, results, strict=True):
        if key == "probabilities":
            yield text, _first(result)
        elif key == "tokens":
            for token in result:
                yield text[token.start : token.end], _first(token.probabilities)
        else:
            for tokens in result:
                yield text, _first(tokens)


def _first(probabilities: dict[str, float]) -> str:
    """Return the most probable labels of a text."""
    ordered = sorted(probabilities.items(), key=lambda item: -item[1])
    return first_of([f"{label} {value:.4f}" for label, value in ordered])
