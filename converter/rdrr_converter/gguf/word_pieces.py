"""WordPiece in GGUF files and in a `tokenizer.json`, both ways.

A GGUF marks the first piece of a word, a `tokenizer.json` all others. Of the steps before, a GGUF
states nothing: llama.cpp splits text as uncased BERT does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

KIND = "bert"
"""The value of `tokenizer.ggml.model`."""

ASSUMED_IDS: Mapping[str, int] = MappingProxyType(
    {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103}
)
"""The special tokens that llama.cpp assumes where a file states none."""

_FIRST, _LATER = "\u2581", "##"
_CONTROL, _UNUSED = 3, 5

UNCASED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": _LATER, "cleanup": True},
    }
)
"""The steps of a tokenizer that splits text as uncased BERT does."""


def model_of(tokens: Sequence[str], types: Sequence[int], unknown: str) -> dict[str, Any]:
    """Return the model of a `tokenizer.json`, given the tokens of a GGUF and their types."""
    pairs = enumerate(zip(tokens, types, strict=True))
    return {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": _LATER,
        "max_input_chars_per_word": 100,
        "vocab": {_theirs(token, kind): at for at, (token, kind) in pairs if kind != _UNUSED},
    }


def tokens_of(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """Return the tokens of a GGUF, given those of a `tokenizer.json` and their types."""
    return [_ours(token, kind) for token, kind in zip(tokens, types, strict=True)]


def is_uncased(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether a `tokenizer.json` splits text as llama.cpp does."""
    normalizer = dict(tokenizer.get("normalizer") or {})
    if normalizer.get("strip_accents") is True:  # None does as `lowercase` says
        normalizer["strip_accents"] = None
    steps = {"normalizer": normalizer, "pre_tokenizer": tokenizer.get("pre_tokenizer")}
    return all(value == UNCASED[key] for key, value in steps.items())


def _theirs(token: str, kind: int) -> str:
    if kind == _CONTROL:
        return token
    return token.removeprefix(_FIRST) if token.startswith(_FIRST) else f"{_LATER}{token}"


def _ours(token: str, kind: int) -> str:
    if kind == _CONTROL:
        return token
    return token.removeprefix(_LATER) if token.startswith(_LATER) else f"{_FIRST}{token}"
