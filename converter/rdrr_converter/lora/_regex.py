"""Regular expressions of strangers, matched without backtracking.

Python's own matcher tries one way after the other, of which `([a-z]+)+!` has 2^n for a text of n
letters. Here a pattern becomes a list of instructions and all ways are followed side by side, so a
match takes at most (instructions x characters) steps (K. Thompson, "Regular Expression Search
Algorithm", 1968). What only backtracking can do, looking around and referring back, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rdrr_format.errors import FormatError

MAX_PATTERN = 4096
"""Characters of a pattern."""

MAX_DEPTH = 32
"""Groups inside each other."""

MAX_INSTRUCTIONS = 4096
"""Instructions of a pattern; counted repetitions are written out."""

Accepts = Callable[[str], bool]
Condition = Callable[[str, int], bool]
"""Whether a condition condition at a position of a text."""

_CLASSES: dict[str, Accepts] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_CONDITIONS: dict[str, Condition] = {
    "^": lambda _, at: at == 0,
    "$": lambda text, at: at == len(text) or (at == len(text) - 1 and text[at] == "\n"),
    "A": lambda _, at: at == 0,
    "Z": lambda text, at: at == len(text),
    "b": lambda text, at: _is_word_boundary(text, at),
    "B": lambda text, at: not _is_word_boundary(text, at),
}


@dataclass(frozen=True)
class _Instruction:
    """One of: take a character that is accepted, go on if a condition condition, go to several places.

    An instruction without any of these is the end.
    """

    accepts: Accepts | None = None
    condition: Condition | None = None
    jumps: tuple[int, ...] = ()


Fragment = list[_Instruction]
"""Instructions that go on behind their last; the places they go to count from their first."""


@dataclass(frozen=True)
class Regex:
    """A compiled pattern.

    Attributes:
        instructions: Its program.
    """

    instructions: tuple[_Instruction, ...]

    def matches(
        self, text: str, starts: Iterable[int] = (0,), count_steps: Callable[[int], object] = int
    ) -> bool:
        """Whether the text from one of some positions to its end is what the pattern describes.

        Args:
            text: The text.
            starts: The positions.
            count_steps: Called with the number of steps as they are taken.
        """
        begins = set(starts)
        here: set[int] = set()
        for at in range(len(text) + 1):
            if at in begins:
                here.add(0)
            reached = self._epsilon_closure(here, text, at)
            count_steps(len(reached) + 1)
            if at == len(text):
                return any(self._is_end(one) for one in reached)
            here = {one + 1 for one in reached if self._consumes(one, text[at])}
        return False

    def _epsilon_closure(self, places: set[int], text: str, at: int) -> set[int]:
        """All places that can be reached without taking a character."""
        reached: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place in reached:
                continue
            reached.add(place)
            one = self.instructions[place]
            left += [place + step for step in one.jumps]
            if one.condition is not None and one.condition(text, at):
                left.append(place + 1)
        return reached

    def _consumes(self, place: int, char: str) -> bool:
        accepts = self.instructions[place].accepts
        return accepts is not None and accepts(char)

    def _is_end(self, place: int) -> bool:
        return self.instructions[place] == _Instruction()


def compile_regex(pattern: str) -> Regex:
    """Compile a pattern in Python's syntax.

    Raises:
        FormatError: It is no regular expression, is too large, or asks for what is not supported:
            looking around, referring back, flags, and possessive or atomic groups.
    """
    if len(pattern) > MAX_PATTERN:
        raise FormatError(
            "a pattern that is too long",
            expected=f"at most {MAX_PATTERN} characters",
            found=len(pattern),
        )
    reader = _Reader(pattern)
    fragment = reader.alternatives(0)
    if not reader.is_at_end:
        raise reader.fault("a bracket that closes nothing")
    return Regex((*fragment, _Instruction()))


class _Reader:
    """A position in a pattern, and what stands there as instructions."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read."""
        return self._at == len(self._pattern)

    def fault(self, message: str) -> FormatError:
        """The error for what stands before the position."""
        found = f"{self._pattern} at character {self._at}"
        return FormatError(message, expected="a regular expression", found=found)

    def alternatives(self, depth: int) -> Fragment:
        """Everything up to a closing bracket or the end."""
        if depth > MAX_DEPTH:
            raise self.fault(f"a pattern with more than {MAX_DEPTH} groups inside each other")
        choices = [self._sequence(depth)]
        while self._skip("|"):
            choices.append(self._sequence(depth))
        fragment = choices.pop()
        for choice in reversed(choices):
            head = _Instruction(jumps=(1, len(choice) + 2))
            fragment = [head, *choice, _Instruction(jumps=(len(fragment) + 1,)), *fragment]
            self._check(len(fragment))
        return fragment

    def _sequence(self, depth: int) -> Fragment:
        fragment: Fragment = []
        while not self.is_at_end and self._pattern[self._at] not in "|)":
            fragment += self._repeated(self._atom(depth))
            self._check(len(fragment))
        return fragment

    def _repeated(self, fragment: Fragment) -> Fragment:
        least, most = self._count()
        if most is None:
            self._check(len(fragment) * max(1, least) + 2)
            # Once more, or on: behind the last of those that have to be there.
            if least:
                return [*fragment * least, _Instruction(jumps=(-len(fragment), 1))]
            return [
                _Instruction(jumps=(1, len(fragment) + 2)),
                *fragment,
                _Instruction(jumps=(-len(fragment), 1)),
            ]
        self._check(len(fragment) * most + most - least)
        result = fragment * least
        optional = [_Instruction(jumps=(1, len(fragment) + 1)), *fragment]
        return result + optional * (most - least)

    def _count(self) -> tuple[int, int | None]:
        """How often the atom before may stand; a lazy mark changes nothing about whether."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._next() in simple:
            count = simple[self._take()]
        elif (braces := self._braces()) is not None:
            count = braces
        else:
            return 1, 1
        self._skip("?")
        if self._next() in simple or self._braces() is not None:
            raise self.fault("a repetition of a repetition, or one that gives nothing back")
        return count

    def _braces(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}`, `{,3}` or `{2,3}`; anything else in braces is text."""
        end = self._pattern.find("}", self._at)
        if self._next() != "{" or end < 0:
            return None
        first, comma, last = self._pattern[self._at + 1 : end].partition(",")
        if not all(part.isdecimal() or not part for part in (first, last)) or not (first or comma):
            return None
        if len(first) > 5 or len(last) > 5:
            raise self.fault("a repetition without end")
        self._at = end + 1
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        if most is not None and most < least:
            raise self.fault("a repetition whose least is more than its most")
        return least, most

    def _atom(self, depth: int) -> Fragment:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return [_Instruction(accepts=self._set())]
        if char == ".":
            return [_Instruction(accepts=lambda one: one != "\n")]
        if char in "^$":
            return [_Instruction(condition=_CONDITIONS[char])]
        if char in "*+?":
            raise self.fault("a repetition of nothing")
        if char != "\\":
            return [_Instruction(accepts=char.__eq__)]
        if self._next() in ("A", "Z", "b", "B"):
            return [_Instruction(condition=_CONDITIONS[self._take()])]
        return [_Instruction(accepts=self._escaped())]

    def _group(self, depth: int) -> Fragment:
        if self._skip("?") and not self._skip(":"):
            end = self._pattern.find(">", self._at)
            if self._pattern[self._at : self._at + 2] != "P<" or end < 0:
                raise self.fault("a group of a kind that is not supported")
            self._at = end + 1
        fragment = self.alternatives(depth + 1)
        if not self._skip(")"):
            raise self.fault("a group that is not closed")
        return fragment

    def _escaped(self) -> Accepts:
        """What a backslash makes of the next character."""
        char = self._take()
        if char.lower() in _CLASSES:
            inside = _CLASSES[char.lower()]
            return inside if char.islower() else lambda one: not inside(one)
        if char in _CONTROLS:
            return _CONTROLS[char].__eq__
        if not char or char.isalnum():
            raise self.fault("an escape that is not supported")
        return char.__eq__

    def _set(self) -> Accepts:
        """The characters in square brackets."""
        is_negated = self._skip("^")
        parts: list[Accepts] = []
        while not (self._next() == "]" and parts):
            if self.is_at_end:
                raise self.fault("a set of characters that is not closed")
            parts.append(self._member())
        self._take()
        return lambda char: any(part(char) for part in parts) != is_negated

    def _member(self) -> Accepts:
        first = self._take()
        escaped = self._escaped() if first == "\\" else None
        ahead = self._pattern[self._at : self._at + 2]
        if not ahead.startswith("-") or ahead in ("-", "-]"):
            return escaped or first.__eq__
        if escaped:
            raise self.fault("a range from an escaped character")
        self._take()
        last = self._take()
        if last == "\\" or last < first:
            raise self.fault("a range of characters that has none")
        return lambda char: first <= char <= last

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._next()
        self._at += 1
        return char

    def _skip(self, char: str) -> bool:
        is_there = self._next() == char
        self._at += is_there
        return is_there

    def _check(self, instructions: int) -> None:
        if instructions > MAX_INSTRUCTIONS:
            raise FormatError(
                "a pattern that describes too much",
                expected=f"at most {MAX_INSTRUCTIONS} instructions",
                found=self._pattern,
            )


def _is_word_boundary(text: str, at: int) -> bool:
    word = _CLASSES["w"]
    before, after = text[at - 1 : at] if at else "", text[at : at + 1]
    return (before != "" and word(before)) != (after != "" and word(after))
