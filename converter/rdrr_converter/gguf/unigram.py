"""Unigram vocabularies of SentencePiece in GGUF files, such as those of XLM-RoBERTa."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KIND = "t5"
"""The value of `tokenizer.ggml.model`."""

UNKNOWN_ID = 2
"""The id of the unknown token that llama.cpp assumes where a file states none."""

UNUSED_SCORE = -10000.0
"""The score that llama.cpp's converter states for rows without a token."""

_NORMAL = 1
_SPACES = {"Regex": " {2,}"}
_SPLITS = ("Metaspace", "WhitespaceSplit")


@dataclass(frozen=True)
class Normalized:
    """What a GGUF states of the steps before the model.

    Attributes:
        charsmap: The table of characters that are replaced first; empty for none.
        adds_prefix: Whether a space is put before a text.
        removes_spaces: Whether spaces around a text, and all but one of several, are removed.
        is_whole: Whether these are all steps.
    """

    charsmap: bytes
    adds_prefix: bool
    removes_spaces: bool
    is_whole: bool


def read_steps(tokenizer: Mapping[str, Any]) -> Normalized:
    """Return what a GGUF states of the steps of a `tokenizer.json`.

    Args:
        tokenizer: Content of the file.
    """
    steps = [*_steps(tokenizer, "normalizer"), *_steps(tokenizer, "pre_tokenizer")]
    tables = [step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"]
    known = [
        step.get("type") in ("Precompiled", "Strip", "Prepend", *_SPLITS)
        or (step.get("type") == "Replace" and _is_of_spaces(step))
        for step in steps
    ]
    return Normalized(
        charsmap=base64.b64decode(tables[0]) if tables else b"",
        adds_prefix=any(_adds_prefix(step) for step in steps),
        removes_spaces=any(
            step.get("type") == "WhitespaceSplit" or step.get("pattern") == _SPACES
            for step in steps
        ),
        is_whole=all(known) and len(tables) < 2,
    )


def _steps(tokenizer: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    step = tokenizer.get(key) or {}
    listed = step.get("normalizers") or step.get("pretokenizers") or [step]
    return [part for part in listed if part]


def _is_of_spaces(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern")
    return pattern in (_SPACES, {"Regex": "^ +| +$"}, {"String": " "})


def _adds_prefix(step: Mapping[str, Any]) -> bool:
    if step.get("type") != "Metaspace":
        return bool(step.get("type") == "Prepend")
    scheme = step.get("prepend_scheme")
    return bool(step.get("add_prefix_space", True)) if scheme is None else scheme != "never"


def model_of(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], unknown: int
) -> dict[str, Any]:
    """Return the model of a `tokenizer.json`.

    Unknown characters score less than the last piece, so that a placeholder between pieces, whose
    score is far below, must not count as one: it has the score of the last piece.

    Args:
        tokens: Tokens of a GGUF.
        scores: Their scores.
        types: Their types.
        unknown: Id of the unknown token.
    """
    pieces = zip(scores, types, strict=True)
    least = min((score for score, kind in pieces if kind == _NORMAL), default=0.0)
    scored = zip(tokens, scores, strict=True)
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": [[token, max(score, least)] for token, score in scored],
        "byte_fallback": False,
    }
