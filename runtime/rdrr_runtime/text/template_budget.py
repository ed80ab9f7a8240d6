"""What rendering a chat template may cost: steps, characters, and calls inside each other.

Every operation of a template pays before it runs, in proportion to what it reads and makes, so that
neither many small operations nor a single large one goes on without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from markupsafe import Markup
from rdrr_format.errors import GenerationError

MAX_STEPS = 2_000_000
"""Operations; one that reads or makes long values counts as one for each `CHARACTERS`."""

CHARACTERS = 256
"""Characters that are read or made in a step."""

NODES = 16
"""Nodes of the syntax tree that are evaluated in a step."""

MAX_TEXT = 1 << 23
"""Characters of one string, one list with all that it holds, and the prompt."""

MAX_WRITTEN = 1 << 26
"""Characters of all strings that are made, the prompt included."""

MAX_CALLS = 64
"""Macros, blocks and loops that are called inside each other."""

MAX_BITS = 4096
"""Bits of a whole number."""

ITEM = 16
"""Characters that an item of a list or an entry of a dictionary counts as, besides its own."""

MAX_DEPTH = 64
"""Levels of lists and dictionaries inside each other."""

ESCAPED = 6
"""Most characters that one becomes when it is escaped for HTML."""


class _Container(NamedTuple):
    """A list, tuple or dictionary that was measured; it is kept so that no other gets its id."""

    value: Any
    size: int
    depth: int


class TemplateBudget:
    """What is left for rendering one conversation.

    Args:
        where: Where the template is from, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._steps = self._written = self._calls = 0
        self._known: dict[int, _Container] = {}

    def spend(self, characters: int = 0, *, steps: int = 1) -> None:
        """Pay for an operation.

        Args:
            characters: Characters that it reads.
            steps: Items that it looks at one by one.

        Raises:
            GenerationError: Nothing is left.
        """
        self._steps += steps + characters // CHARACTERS
        if self._steps > MAX_STEPS:
            raise self._beyond("takes too many steps", f"{MAX_STEPS} steps")

    def write(self, characters: int) -> None:
        """Pay for a string that is going to be made.

        Raises:
            GenerationError: It is too long, or all strings together are.
        """
        self.check_size(characters)
        self.spend(characters)
        self._written += characters
        if self._written > MAX_WRITTEN:
            raise self._beyond("writes too much", f"{MAX_WRITTEN} characters in all")

    def check_size(self, characters: int) -> None:
        """Check the size of one value.

        Raises:
            GenerationError: It is too large.
        """
        if characters > MAX_TEXT:
            raise self._beyond("makes a value that is too large", f"{MAX_TEXT} characters")

    def check_bits(self, bits: int) -> None:
        """Check the length of a whole number that is going to be computed.

        Raises:
            GenerationError: It is too long.
        """
        if bits > MAX_BITS:
            raise self._beyond("makes a number that is too large", f"{MAX_BITS} bits")

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call of a macro, block or loop while it runs.

        Raises:
            GenerationError: There are too many inside each other.
        """
        self._calls += 1
        try:
            if self._calls > MAX_CALLS:
                raise self._beyond("calls itself too deeply", f"{MAX_CALLS} calls")
            yield
        finally:
            self._calls -= 1

    def size(self, value: Any) -> int:
        """Return the characters of a value, with all that it holds as often as it holds it.

        Raises:
            GenerationError: It is too large.
        """
        if isinstance(value, str):
            return len(value) * (ESCAPED if isinstance(value, Markup) else 1)
        if isinstance(value, (list, tuple, dict)):
            return self._container(value).size
        return value.bit_length() // 3 + 1 if isinstance(value, int) else ITEM

    def depth(self, value: Any) -> int:
        """Return the levels of a value; 0 for one that holds no others."""
        return self._container(value).depth if isinstance(value, (list, tuple, dict)) else 0

    def _container(self, value: Any) -> _Container:
        """Measure a list, tuple or dictionary once: templates cannot change one."""
        known = self._known.get(id(value))
        if known is None:
            self.spend(steps=4 + len(value))
            items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            size = ITEM * (1 + len(items)) + sum(map(self.size, items))
            depth = 1 + max(map(self.depth, items), default=0)
            self.check_size(size)
            if depth > MAX_DEPTH:
                raise self._beyond("makes a value that is nested too deeply", f"{MAX_DEPTH} levels")
            self._known[id(value)] = known = _Container(value, size, depth)
        return known

    def each(self, values: Iterable[Any], steps: int = 1) -> Iterator[Any]:
        """Yield the items of a loop, each for so many steps."""
        for value in values:
            self.spend(steps=steps)
            yield value

    def listed(self, values: Iterable[Any]) -> list[Any]:
        """Return the items of what a filter reads, checked as a list.

        Raises:
            GenerationError: There are too many, or they are too large.
        """
        found = list(self.each(values))
        self.size(found)
        return found

    def _beyond(self, message: str, bound: str) -> GenerationError:
        return GenerationError(
            f"the chat template {message}",
            where=self._where,
            expected=f"at most {bound}",
            hint="use another template, given by `template`",
        )
