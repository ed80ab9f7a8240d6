"""Unigram vocabularies of SentencePiece in GGUF files, such as those of XLM-RoBERTa."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

KIND = "t5"
"""The value of `tokenizer.ggml.model`."""

UNKNOWN_ID = 2
"""The id of the unknown token that llama.cpp assumes where a file states none."""

_NORMAL = 1


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
