"""The step of a `tokenizer.json` that puts special tokens around a text, or two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Around:
    """The special tokens around texts, by their ids; None for none.

    Attributes:
        before: The token before the first text.
        after: The token after each text.
        second: The token before the second text of a pair.
        has_types: Whether the tokens of the second text have another type.
    """

    before: int | None
    after: int | None
    second: int | None
    has_types: bool = True


def template(tokens: Sequence[str], around: Around) -> dict[str, Any] | None:
    """Return the step; None if no tokens are around a text.

    Args:
        tokens: The vocabulary.
        around: The tokens.
    """
    if around.before is None and around.after is None:
        return None
    parts = {
        name: [
            *_special(tokens, first, kind),
            {"Sequence": {"id": name, "type_id": kind}},
            *_special(tokens, around.after, kind),
        ]
        for name, first, kind in (
            ("A", around.before, 0),
            ("B", around.second, int(around.has_types)),
        )
    }
    used = (around.before, around.second, around.after)
    special = {tokens[index]: index for index in used if index is not None}
    return {
        "type": "TemplateProcessing",
        "single": parts["A"],
        "pair": [*parts["A"], *parts["B"]],
        "special_tokens": {
            token: {"id": token, "ids": [index], "tokens": [token]}
            for token, index in special.items()
        },
    }


def _special(tokens: Sequence[str], index: int | None, kind: int) -> list[dict[str, Any]]:
    """Return the part of a template that adds a token; nothing for None."""
    return [] if index is None else [{"SpecialToken": {"id": tokens[index], "type_id": kind}}]
