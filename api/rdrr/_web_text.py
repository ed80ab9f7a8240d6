"""Whether the browser runtime reads a tokenizer as Python does.

It uses another library for tokenizers. What that reads differently is mended in `web/src/text`, or
refused there and here by the same names; `tests/data/vectors/refused_tokenizers.json` has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

Step = Mapping[str, Any]

MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")
UNREAD = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
"""Options of a model that browsers do not read."""

KNOWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "normalizer": (
            *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled"),
            *("Prepend", "Replace", "Strip", "StripAccents"),
        ),
        "pre_tokenizer": (
            *("BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"),
            *("Whitespace", "WhitespaceSplit"),
        ),
        "post_processor": (
            *("BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"),
        ),
        "decoder": (
            *("BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip"),
            "WordPiece",
        ),
    }
)
"""Types of the steps of each part that browsers read."""

_IGNORING_CASE = re.compile(r"\(\?i:((?:[^()\[\]\\]|\[[a-zA-Z]+\])*)\)")
_FOLDED_OTHERWISE = re.compile(r"[^\0-\x7f]|ss|st|f[fil]", re.IGNORECASE | re.ASCII)


def unread_in_browsers(tokenizer: Mapping[str, Any]) -> str | None:
    """Return what of a tokenizer.json browsers would read differently; None for nothing.

    Args:
        tokenizer: The content of the file.
    """
    return next(_unread(tokenizer), None)


def _unread(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    model = tokenizer.get("model") or {}
    if (kind := model.get("type", "BPE")) not in MODELS:
        yield f"a model of type {kind}"
    read = ("continuing_subword_prefix",) if kind == "WordPiece" else ()
    yield from (f"a model with {name}" for name in UNREAD if model.get(name) and name not in read)
    for part, known in KNOWN.items():
        for step in _steps(tokenizer.get(part)):
            if step.get("type") not in known:
                yield f"the {part.replace('_', '-')} {step.get('type')}"
            elif (fault := _option(part, step)) is not None:
                yield fault
    if _loses_added_tokens(tokenizer):
        yield "an added token that the normalizer makes empty or equal to another"


def _loses_added_tokens(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether the library takes an added token for another, by the order of a hash table."""
    from rdrr_format.bounded_tokenizer import normalized_texts

    added, normalizer = tokenizer.get("added_tokens"), tokenizer.get("normalizer")
    listed = added if isinstance(added, list) else ()
    tokens = [token for token in listed if isinstance(token, Mapping) and token.get("normalized")]
    contents = {str(token.get("content", "")) for token in tokens} - {""}
    texts = set(normalized_texts(normalizer, [*contents])) if normalizer else contents
    return len(texts) < len(contents) or "" in texts


def _steps(step: Any) -> Iterator[Step]:
    if not isinstance(step, Mapping):
        return
    lists = ("normalizers", "pretokenizers", "processors", "decoders")
    inner = [item for key in lists for item in step.get(key) or ()]
    others = [each for item in (step.get("pretokenizers") or ())[1:] for each in _steps(item)]
    if any(each.get("prepend_scheme") == "first" for each in others):
        yield {"type": "Metaspace (first) behind another"}
    if step.get("type") != "Sequence":
        yield step
    for each in inner:
        yield from _steps(each)


def _option(part: str, step: Step) -> str | None:
    """Return what a step of a known type has that browsers do not read."""
    kind, behavior = step["type"], step.get("behavior", "Isolated")
    if part != "decoder" and _folds(str((step.get("pattern") or {}).get("Regex", ""))):
        return "a pattern that ignores case"
    if part == "decoder":
        is_regex = kind == "Replace" and "String" not in step.get("pattern", {})
        return "the decoder Replace with a regular expression" if is_regex else None
    if part != "pre_tokenizer":
        return None
    if kind == "ByteLevel" and step.get("add_prefix_space") and step.get("use_regex", True):
        return "the pre-tokenizer ByteLevel with add_prefix_space"
    if kind == "Punctuation" and behavior != "Isolated":
        return f"the pre-tokenizer Punctuation ({behavior})"
    if kind == "Split" and not _splits(step, behavior):
        return f"the pre-tokenizer Split ({behavior}{', inverted' if step.get('invert') else ''})"
    return None


def _folds(regex: str) -> bool:
    """Return whether a pattern ignores the case of more than ASCII letters and classes of them.

    Of these `s` and `k` have a third form, which browsers know, and `ss` and the like a ligature.
    """
    bodies = _IGNORING_CASE.findall(regex)
    rest = _IGNORING_CASE.sub("", regex)
    return bool(re.search(r"\(\?[a-z]*i", rest)) or any(map(_FOLDED_OTHERWISE.search, bodies))


def _splits(step: Step, behavior: str) -> bool:
    if behavior == "Removed":
        return True
    if step.get("invert"):
        return False
    text = (step.get("pattern") or {}).get("String")
    return behavior == "Isolated" or (
        behavior == "MergedWithPrevious" and text is not None and len(text) == 1
    )
