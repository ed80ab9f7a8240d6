"""Control tokens in the text of a conversation: the template's, and text that looks like them.

A template writes control tokens around messages. Where a message holds the text of one, the text is
marked before the template sees it, and encoded as the characters that it consists of. Marks are
characters that Unicode reserves for programs, and texts lose them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

BEGIN, END = "\ufdd0", "\ufdd1"
"""Marks before and after text that must not become a control token."""

_MARKED = re.compile(f"{BEGIN}([^{BEGIN}{END}]*){END}|[{BEGIN}{END}]")


class ControlTokens:
    """The control tokens of a model and its template.

    Args:
        texts: The control tokens.
        becomes: Returns whether a text becomes a control token although it holds the text of none,
            as where the tokenizer normalizes it; None if no text does.
    """

    def __init__(
        self, texts: Collection[str], becomes: Callable[[str], bool] | None = None
    ) -> None:
        self._becomes = becomes
        # Longer tokens first, because one may contain another.
        ordered = sorted(filter(None, texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")

    def marked(self, value: Any) -> Any:
        """Return a JSON value with marks around the control tokens in its strings."""
        if isinstance(value, str):
            text = value.replace(BEGIN, "").replace(END, "")
            if self._becomes is not None and self._becomes(self._pattern.sub("", text)):
                return f"{BEGIN}{text}{END}"
            return self._pattern.sub(rf"{BEGIN}\g<0>{END}", text)
        if isinstance(value, Mapping):
            return {self.marked(key): self.marked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(item) for item in value]
        return value


def has_marks(text: str) -> bool:
    """Return whether a text has marked parts."""
    return _MARKED.search(text) is not None


def marked_parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a text without marks, each with whether it was marked.

    A template may have cut a marked part in two; its halves stay apart.
    """
    parts = _MARKED.split(text)
    return [(part, at % 2 == 1) for at, part in enumerate(parts) if part]
