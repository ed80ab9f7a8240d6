"""Tables from patterns of module names to values, in which an adapter states ranks and alphas.

A pattern matches a whole name or the part after one of its dots; the first matching pattern of the
table counts. Patterns that are plain names are looked up; other patterns are matched in bounded
time (`_regex`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from rdrr_format.errors import FormatError

from rdrr_converter.lora._regex import Regex, compile_regex

V = TypeVar("V")

MAX_PATTERNS = 1 << 16
"""Maximum number of patterns in a table."""

MAX_STEPS = 20_000_000
"""Maximum number of matching steps for a table, over all modules; about ten seconds."""

MAX_NAME = 1024
"""Maximum length of a module's name in characters."""

_NAME = re.compile(r"[\w.]*")


class PatternTable(Generic[V]):
    """A table from patterns to values.

    Args:
        values: Values by regular expressions in Python's syntax.

    Raises:
        FormatError: A pattern is invalid or not supported, or there are too many patterns.
    """

    def __init__(self, values: Mapping[str, V]) -> None:
        if len(values) > MAX_PATTERNS:
            raise FormatError(
                "too many patterns", expected=f"at most {MAX_PATTERNS}", found=len(values)
            )
        self._values = tuple(values.values())
        self._left = MAX_STEPS
        self._names: dict[str, int] = {}
        # A dot matches any character, so a plain name also matches names of the same length with
        # fewer dots.
        self._dotted: defaultdict[int, defaultdict[int, list[tuple[int, str]]]]
        self._dotted = defaultdict(lambda: defaultdict(list))
        self._others: list[tuple[int, Regex]] = []
        for index, pattern in enumerate(values):
            if _NAME.fullmatch(pattern):
                self._names.setdefault(pattern, index)
                self._dotted[len(pattern)][pattern.count(".")].append((index, pattern))
            else:
                self._others.append((index, compile_regex(pattern)))

    def find(self, module: str) -> V | None:
        """Return the value of the first pattern that matches a module's name; None if none does.

        Raises:
            FormatError: The name is too long, or matching takes too many steps.
        """
        if len(module) > MAX_NAME:
            raise FormatError(
                "a module's name is too long",
                expected=f"at most {MAX_NAME} characters",
                found=len(module),
            )
        starts = [0, *(at + 1 for at, char in enumerate(module) if char == ".")]
        first = min(self._by_name(module, starts), default=len(self._values))
        for index, regex in self._others:
            if index > first:
                break
            if regex.matches(module, starts, self._count_steps):
                first = index
                break
        return self._values[first] if first < len(self._values) else None

    def _by_name(self, module: str, starts: list[int]) -> Iterator[int]:
        for start in starts:
            ending = module[start:]
            if ending in self._names:
                yield self._names[ending]
            for dots, patterns in self._dotted.get(len(ending), {}).items():
                if dots <= ending.count("."):
                    continue
                self._count_steps(len(patterns))
                yield from (index for index, pattern in patterns if _matches_name(pattern, ending))

    def _count_steps(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise FormatError(
                "the patterns take too long to match", expected=f"at most {MAX_STEPS} steps"
            )


def _matches_name(pattern: str, name: str) -> bool:
    """Return whether a pattern of letters and dots matches a name of the same length."""
    return all(char in (".", other) for char, other in zip(pattern, name, strict=True))
