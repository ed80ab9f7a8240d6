"""Control tokens in the text of a conversation: the template's, and text that looks like them.

A template writes control tokens around messages. Where a message holds the text of one, the text is
marked before the template sees it, and encoded as the characters that it consists of. Marks are
characters that Unicode reserves for programs, and texts lose them.

A template may also join texts of which none holds a control token, as the parts of a content, or
change them, so that one arises. So the messages are rendered again with cuts around characters
that may be part of a control token, and a control token with a cut inside is text of the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from unicodedata import normalize

from rdrr_format.errors import GenerationError

BEGIN, END = "\ufdd0", "\ufdd1"
"""Marks before and after text that must not become a control token."""

CUT = "\ufdd2"
"""Mark around a character of a text that may be part of a control token."""

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
        self._needed = [frozenset(_plainest(text)) for text in texts if text]
        self._signs = frozenset(map(_sign, filter(None, texts)))
        # Longer tokens first, because one may contain another.
        ordered = sorted(filter(None, texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        cut = (f"{CUT}*".join(map(re.escape, text)) for text in ordered)
        self._cut_pattern = re.compile("|".join(cut) or "(?!)")

    def marked(self, value: Any) -> Any:
        """Return a JSON value with marks around the control tokens in its strings."""
        return _mapped(value, self._mark)

    def cut(self, value: Any) -> Any:
        """Return a marked JSON value with cuts between the marks."""
        if isinstance(value, Mapping):
            return {self._cut_name(key): self._cut_item(key, item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cut(item) for item in value]
        return self._cut(value) if isinstance(value, str) else value

    def can_arise(self, value: Any) -> bool:
        """Return whether the strings of a JSON value have all characters of a control token."""
        characters = set[str]().union(*_strings(value))
        plainest = set(_plainest("".join(sorted(characters))))
        return any(needed <= plainest for needed in self._needed)

    def marked_where_cut(self, text: str, cut: str) -> str:
        """Return the text that a template made of messages, with all text of theirs marked.

        Args:
            text: The text of marked messages.
            cut: The text of marked messages with cuts.

        Raises:
            GenerationError: The template writes other control tokens where the messages are cut, so
                that it cannot be told which of them are its own.
        """
        if cut.replace(CUT, "") == text:
            return "".join(self._mark_cut(cut))
        if self._controls(text) != self._controls(cut):
            raise GenerationError(
                "the chat template may make a control token of pieces of the messages",
                hint="change the messages, or allow control tokens in messages",
            )
        return text

    def _mark(self, text: str) -> str:
        text = text.translate(_UNMARKED)
        if self._becomes is not None and self._becomes(self._pattern.sub("", text)):
            return f"{BEGIN}{text}{END}"
        return self._pattern.sub(rf"{BEGIN}\g<0>{END}", text)

    def _cut(self, text: str) -> str:
        for character in set(text):
            if _plainest(character)[:1] in self._signs:
                text = text.replace(character, f"{CUT}{character}{CUT}")
        return _MARKED.sub(lambda part: part[0].replace(CUT, ""), text)

    def _cut_name(self, name: str) -> str:
        return name if name.isidentifier() else self._cut(name)

    def _cut_item(self, key: str, item: Any) -> Any:
        is_name = key in _NAMED and isinstance(item, str)
        return self._cut_name(item) if is_name else self.cut(item)

    def _mark_cut(self, text: str) -> Iterator[str]:
        """Yield a text without cuts, its marks as they are and others where cuts are."""
        position = 0
        for mark in _MARKED.finditer(text):
            yield from self._mark_part(text[position : mark.start()])
            yield mark[0]
            position = mark.end()
        yield from self._mark_part(text[position:])

    def _mark_part(self, text: str) -> Iterator[str]:
        position = 0
        for control in self._cut_pattern.finditer(text):
            yield self._mark_between(text[position : control.start()])
            yield _mark_if_cut(control[0])
            position = control.end()
        yield self._mark_between(text[position:])

    def _mark_between(self, text: str) -> str:
        """Mark a text without control tokens if it has cuts and becomes one in the tokenizer."""
        plain = text.replace(CUT, "")
        is_control = CUT in text and self._becomes is not None and self._becomes(plain)
        return f"{BEGIN}{plain}{END}" if is_control else plain

    def _controls(self, text: str) -> list[str]:
        """Return the control tokens of a text that are not marked, in their order."""
        parts = [part for part, is_marked in marked_parts(text) if not is_marked]
        controls = [control for part in parts for control in self._pattern.findall(part)]
        if self._becomes is not None:
            controls += [
                CUT
                for part in parts
                for between in self._pattern.split(part)
                if self._becomes(between.replace(CUT, ""))
            ]
        return controls


_NAMED = ("role", "type")
"""Keys of names that templates compare."""

_UNMARKED = dict.fromkeys(map(ord, (BEGIN, END, CUT)))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with its strings changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_strings(key), *_strings(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _plainest(text: str) -> str:
    """Return a text as a tokenizer or a filter may change it, without case and width."""
    return normalize("NFKC", text).casefold()


def _sign(control: str) -> str:
    """Return the character of a control token at which messages are cut, if possible no letter."""
    plainest = _plainest(control)
    return next((character for character in plainest if not character.isalnum()), plainest[0])


def _mark_if_cut(control: str) -> str:
    plain = control.replace(CUT, "")
    return f"{BEGIN}{plain}{END}" if CUT in control else plain


def has_marks(text: str) -> bool:
    """Return whether a text has marked parts."""
    return _MARKED.search(text) is not None


def marked_parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a text without marks, each with whether it was marked.

    A template may have cut a marked part in two; its halves stay apart.
    """
    parts = _MARKED.split(text)
    return [(part, at % 2 == 1) for at, part in enumerate(parts) if part]
