"""The budget for rendering a chat template: steps, characters and nested calls.

Every operation of a template is charged before it runs, in proportion to what it reads and creates.
So neither many small operations nor a single large one can use unbounded time or memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from markupsafe import Markup
from rdrr_format.errors import GenerationError

from rdrr_runtime.text.template_words import PLAIN, word_for

MAX_STEPS = 2_000_000
"""Most steps of one rendering.

An operation is one step, plus one for every `CHARACTERS_PER_STEP` characters that it reads or
creates.
"""

CHARACTERS_PER_STEP = 256
"""Characters that can be read or created in one step."""

NODES_PER_STEP = 16
"""Nodes of the syntax tree that can be evaluated in one step."""

MAX_TEXT = 1 << 23
"""Most characters of one string, of one list or dictionary with its items, and of the prompt."""

MAX_WRITTEN = 1 << 26
"""Most characters of all strings that one rendering creates, including the prompt."""

MAX_NESTED_CALLS = 64
"""Greatest nesting depth of calls of macros, blocks and recursive loops."""

COMPARISONS_PER_STEP = 4096
"""Characters that a search can compare in one step."""

MAX_BITS = 64
"""Most bits of an integer.

Python's hash of an integer is the remainder of a division by 2^61 - 1, so with more bits a template
could make any number of keys with the same hash, each of which is compared with all others.
"""

CHARACTERS_PER_ITEM = 16
"""Characters that an item of a list or an entry of a dictionary counts for, besides its content."""

MAX_DEPTH = 64
"""Greatest nesting depth of lists and dictionaries."""

CHARACTERS_PER_ESCAPE = 6
"""Most characters that one character becomes when it is escaped for HTML."""


class _Container(NamedTuple):
    """A measured list, tuple or dictionary.

    It holds a reference to the value, so that no other object can get the same `id()`. If the value
    is not plain, `opaque` says what it contains that is not.
    """

    value: Any
    size: int
    depth: int
    opaque: str


class TemplateBudget:
    """The running totals of one rendering, checked against the limits of this module.

    Args:
        where: File that the template was read from, for error messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._steps = self._written = self._calls = 0
        self._known: dict[int, _Container] = {}

    def charge(self, characters: int = 0, *, steps: int = 1) -> None:
        """Charge an operation.

        Args:
            characters: Characters that the operation reads.
            steps: Items that the operation looks at one by one.

        Raises:
            GenerationError: The rendering takes more than `MAX_STEPS` steps.
        """
        self._steps += steps + characters // CHARACTERS_PER_STEP
        if self._steps > MAX_STEPS:
            raise self._beyond("takes too many steps", f"{MAX_STEPS} steps")

    def charge_string(self, characters: int) -> None:
        """Charge a string of `characters` characters before it is created.

        Raises:
            GenerationError: The string is too long, or all strings together are.
        """
        self.check_size(characters)
        self.charge(characters)
        self._written += characters
        if self._written > MAX_WRITTEN:
            raise self._beyond("writes too much", f"{MAX_WRITTEN} characters in all")

    def check_size(self, characters: int) -> None:
        """Check the size of one value.

        Raises:
            GenerationError: The value has more than `MAX_TEXT` characters.
        """
        if characters > MAX_TEXT:
            raise self._beyond("makes a value that is too large", f"{MAX_TEXT} characters")

    def charge_search(self, text: Any, sought: Any, *, is_reverse: bool = False) -> None:
        """Charge a search for a text in a text, by the most comparisons that CPython makes.

        From the right, and for a short text, every character may be compared at every position.
        From the left, for a longer one, CPython may do that at the last 2,000 positions.
        """
        if isinstance(text, str) and isinstance(sought, str):
            positions = max(0, len(text) - len(sought) + 1)
            if len(sought) >= 100 and not is_reverse:
                positions = min(positions, 2500)
            self.charge(steps=positions * len(sought) // COMPARISONS_PER_STEP)

    def check_plain(self, *values: Any, must_not: str = "be printed") -> None:
        """Check that values are plain, so that their text has no names of classes or addresses.

        Raises:
            SecurityError: A value is or contains a function, a namespace, an iterator or the like.
        """
        for value in values:
            word = self._opaque(value)
            if word:
                raise SecurityError(f"{word} cannot {must_not}")

    def check_bits(self, bits: int) -> None:
        """Check the length of an integer before it is computed.

        Raises:
            GenerationError: The integer has more than `MAX_BITS` bits.
        """
        if bits > MAX_BITS:
            raise self._beyond("makes a number that is too large", f"{MAX_BITS} bits")

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call of a macro, block or recursive loop while it runs.

        Raises:
            GenerationError: More than `MAX_NESTED_CALLS` calls are nested.
        """
        self._calls += 1
        try:
            if self._calls > MAX_NESTED_CALLS:
                raise self._beyond("calls itself too deeply", f"{MAX_NESTED_CALLS} calls")
            yield
        finally:
            self._calls -= 1

    def size(self, value: Any) -> int:
        """Return the size of a value in characters, counting an item as often as it occurs.

        Raises:
            GenerationError: The value is too large.
        """
        if isinstance(value, str):
            return len(value) * (CHARACTERS_PER_ESCAPE if isinstance(value, Markup) else 1)
        if isinstance(value, (list, tuple, dict)):
            return self._container(value).size
        return value.bit_length() // 3 + 1 if isinstance(value, int) else CHARACTERS_PER_ITEM

    def depth(self, value: Any) -> int:
        """Return the nesting depth of a value; 0 for one that is not a container."""
        return self._container(value).depth if isinstance(value, (list, tuple, dict)) else 0

    def _opaque(self, value: Any) -> str:
        """Return what a value is or contains that is not plain; empty for a plain value."""
        if isinstance(value, (list, tuple, dict)):
            return self._container(value).opaque
        return "" if isinstance(value, PLAIN) else word_for(value)

    def _opaque_item(self, value: Any) -> str:
        # Python writes an escaped text in a list with the name of its class.
        return word_for(value) if isinstance(value, Markup) else self._opaque(value)

    def _container(self, value: Any) -> _Container:
        """Return the measures of a list, tuple or dictionary.

        Each is measured only once, because templates cannot change a container.

        Raises:
            GenerationError: The value is too large or nested too deeply.
            SecurityError: A dictionary has a list as a key, whose hash a template could choose.
        """
        known = self._known.get(id(value))
        if known is None:
            self.charge(steps=4 + len(value))
            items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            size = CHARACTERS_PER_ITEM * (1 + len(items)) + sum(map(self.size, items))
            depth = 1 + max(map(self.depth, items), default=0)
            self.check_size(size)
            if depth > MAX_DEPTH:
                raise self._beyond("makes a value that is nested too deeply", f"{MAX_DEPTH} levels")
            if isinstance(value, dict) and any(isinstance(key, tuple) for key in value):
                raise SecurityError("a list cannot be a key")
            opaque = next(filter(None, map(self._opaque_item, items)), "")
            self._known[id(value)] = known = _Container(value, size, depth, opaque)
        return known

    def iterate(self, values: Iterable[Any], steps: int = 1) -> Iterator[Any]:
        """Yield the items of a loop and charge `steps` steps for each."""
        for value in values:
            self.charge(steps=steps)
            yield value

    def materialize(self, values: Iterable[Any]) -> list[Any]:
        """Return the items of a lazy iterable as a list, charged and checked.

        Raises:
            GenerationError: There are too many items, or they are too large.
        """
        items = list(self.iterate(values))
        self.size(items)
        return items

    def _beyond(self, message: str, bound: str) -> GenerationError:
        return GenerationError(
            f"the chat template {message}",
            where=self._where,
            expected=f"at most {bound}",
            hint="use another template, given by `template`",
        )
