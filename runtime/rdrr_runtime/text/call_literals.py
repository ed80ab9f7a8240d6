"""Values as models write them in calls of tools: JSON, Python's literals, and keys without quotes.

A model's text is nearly one of these languages, so one reader takes all of them. Whoever reads the
table of formats in another language can have the same reader: it has no state but a position.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64
"""Deepest nesting of a value."""

_SPACE = " \t\r\n"
_WORDS = {
    "true": True, "True": True, "false": False, "False": False,
    "null": None, "None": None,
}  # fmt: skip
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CLOSING = {"{": "}", "[": "]", "(": ")"}


class LiteralReader:
    """A reader of values in a text.

    Args:
        text: The text.
        quote: A text that stands around strings, besides `"` and `'`.

    Attributes:
        at: Position of the next character.
    """

    def __init__(self, text: str, quote: str = '"') -> None:
        self.text, self.at = text, 0
        self._quotes = (quote, '"', "'")

    def value(self, depth: int = 0) -> Any:
        """Read a value.

        Raises:
            ValueError: There is none.
        """
        if depth > MAX_DEPTH:
            raise ValueError("too deep")
        self.skip()
        for quote in self._quotes:
            if self.text.startswith(quote, self.at):
                return self._string(quote)
        if self.text.startswith("{", self.at):
            return dict(self.pairs("{", ":", depth))
        if self.text.startswith(("[", "("), self.at):
            return self._items(depth)
        return self._word()

    def pairs(self, opening: str, separator: str, depth: int = 0) -> list[tuple[str, Any]]:
        """Read keys and values, from the opening bracket to the closing one.

        Raises:
            ValueError: The text is something else.
        """
        pairs = []
        self.take(opening)
        while not self.skips(_CLOSING[opening]):
            key = self._key(separator)
            self.take(separator)
            pairs.append((key, self.value(depth + 1)))
            if not self.skips(","):
                self.take(_CLOSING[opening])
                break
        return pairs

    def word(self, stops: str) -> str:
        """Read characters up to one of `stops`."""
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in stops:
            self.at += 1
        return self.text[begin : self.at].strip(_SPACE)

    def skip(self) -> None:
        """Skip white space."""
        while self.at < len(self.text) and self.text[self.at] in _SPACE:
            self.at += 1

    def skips(self, mark: str) -> bool:
        """Skip a mark if it comes next, and say whether it did."""
        self.skip()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def take(self, mark: str) -> None:
        """Skip a mark.

        Raises:
            ValueError: Something else comes next.
        """
        if not self.skips(mark):
            raise ValueError(f"{mark} is missing at {self.at}")

    def _key(self, separator: str) -> str:
        self.skip()
        for quote in self._quotes:
            if self.text.startswith(quote, self.at):
                return self._string(quote)
        if key := self.word(separator + ",{}[]()"):
            return key
        raise ValueError(f"a key is missing at {self.at}")

    def _items(self, depth: int) -> list[Any]:
        closing = _CLOSING[self.text[self.at]]
        self.at += 1
        items = []
        while not self.skips(closing):
            items.append(self.value(depth + 1))
            if not self.skips(","):
                self.take(closing)
                break
        return items

    def _string(self, quote: str) -> str:
        begin = self.at + len(quote)
        if len(quote) > 1:  # a mark that no escape can hold
            end = self.text.index(quote, begin)
            self.at = end + len(quote)
            return self.text[begin:end]
        parts = []
        at = begin
        while self.text[at : at + 1] != quote:
            if at >= len(self.text):
                raise ValueError("a string does not end")
            if self.text[at] == "\\":
                part, at = self._escape(at + 1)
            else:
                part, at = self.text[at], at + 1
            parts.append(part)
        self.at = at + 1
        return _joined("".join(parts))

    def _escape(self, at: int) -> tuple[str, int]:
        name = self.text[at : at + 1]
        digits = self.text[at + 1 : at + 5]
        if name == "u" and re.fullmatch("[0-9a-fA-F]{4}", digits):
            return chr(int(digits, 16)), at + 5
        return _ESCAPES.get(name, name), at + 1

    def _word(self) -> Any:
        word = self.word(",{}[]()")
        if word in _WORDS:
            return _WORDS[word]
        if _NUMBER.match(word):
            return json.loads(word) if len(word) < 400 else word
        if not word:
            raise ValueError(f"a value is missing at {self.at}")
        return word


def _joined(text: str) -> str:
    """Return a text whose pairs of surrogates are characters; single ones are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
