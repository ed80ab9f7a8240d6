"""A regular expression matcher without backtracking, for untrusted patterns.

Python's matcher backtracks, which takes 2^n steps for the pattern `([a-z]+)+!` and a text of n
letters. Here a pattern is compiled into a nondeterministic automaton (a list of instructions) whose
states are all followed at the same time, so that a match takes at most instructions x characters
steps (K. Thompson, "Regular Expression Search Algorithm", 1968). Lookaround and backreferences,
which need backtracking, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rdrr_format.errors import FormatError

MAX_PATTERN = 4096
"""Maximum length of a pattern in characters."""

MAX_DEPTH = 32
"""Maximum depth of nested groups."""

MAX_INSTRUCTIONS = 4096
"""Maximum number of instructions of a pattern; counted repetitions are unrolled."""

Accepts = Callable[[str], bool]
Condition = Callable[[str, int], bool]
"""A predicate on a text and a position in it."""

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
    """An instruction of the automaton.

    It either consumes a character, continues if a condition holds, or jumps. An instruction that
    does none of these is the accepting state.

    Attributes:
        accepts: Predicate on the character to consume.
        condition: Zero-width condition, such as the start of the text.
        jumps: Relative targets, all of which are followed.
    """

    accepts: Accepts | None = None
    condition: Condition | None = None
    jumps: tuple[int, ...] = ()


Fragment = list[_Instruction]
"""Instructions that continue after the last of them; jumps are relative, so they can be moved."""


@dataclass(frozen=True)
class Regex:
    """A compiled pattern.

    Attributes:
        instructions: The instructions of the automaton; the last is the accepting state.
    """

    instructions: tuple[_Instruction, ...]

    def matches(
        self, text: str, starts: Iterable[int] = (0,), count_steps: Callable[[int], object] = int
    ) -> bool:
        """Return whether the pattern matches the text from one of `starts` to its end.

        Args:
            text: The text.
            starts: Positions at which a match may begin.
            count_steps: Called with the number of steps of each character.
        """
        begins = set(starts)
        here: set[int] = set()
        for at in range(len(text) + 1):
            if at in begins:
                here.add(0)
            reached = self._epsilon_closure(here, text, at)
            count_steps(len(reached) + 1)
            if at == len(text):
                return any(self._is_end(state) for state in reached)
            here = {state + 1 for state in reached if self._consumes(state, text[at])}
        return False

    def _epsilon_closure(self, states: set[int], text: str, at: int) -> set[int]:
        """Return all states that can be reached without consuming a character."""
        reached: set[int] = set()
        left = list(states)
        while left:
            state = left.pop()
            if state in reached:
                continue
            reached.add(state)
            instruction = self.instructions[state]
            left += [state + step for step in instruction.jumps]
            if instruction.condition is not None and instruction.condition(text, at):
                left.append(state + 1)
        return reached

    def _consumes(self, state: int, char: str) -> bool:
        accepts = self.instructions[state].accepts
        return accepts is not None and accepts(char)

    def _is_end(self, state: int) -> bool:
        return self.instructions[state] == _Instruction()


def compile_regex(pattern: str) -> Regex:
    """Compile a pattern in Python's syntax.

    Raises:
        FormatError: The pattern is invalid, is too large, or uses something that is not supported:
            lookaround, backreferences, flags, possessive repetitions or atomic groups.
    """
    if len(pattern) > MAX_PATTERN:
        raise FormatError(
            "the pattern is too long",
            expected=f"at most {MAX_PATTERN} characters",
            found=len(pattern),
        )
    reader = _Reader(pattern)
    fragment = reader.alternatives(0)
    if not reader.is_at_end:
        raise reader.fault("a closing parenthesis is unmatched")
    return Regex((*fragment, _Instruction()))


class _Reader:
    """A recursive-descent parser that translates a pattern into instructions."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the whole pattern was read."""
        return self._at == len(self._pattern)

    def fault(self, message: str) -> FormatError:
        """Return an error at the present position."""
        place = f"{self._pattern} at character {self._at}"
        return FormatError(message, expected="a regular expression", found=place)

    def alternatives(self, depth: int) -> Fragment:
        """Read alternatives up to a closing parenthesis or the end."""
        if depth > MAX_DEPTH:
            raise self.fault(f"the pattern nests groups more than {MAX_DEPTH} deep")
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
            # After the last required repetition, either repeat it or continue.
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
        """Read the quantifier of an atom; laziness does not change whether a pattern matches."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._next() in simple:
            count = simple[self._take()]
        elif (braces := self._braces()) is not None:
            count = braces
        else:
            return 1, 1
        self._skip("?")
        if self._next() in simple or self._braces() is not None:
            raise self.fault("a repetition of a repetition, or a possessive one, is not supported")
        return count

    def _braces(self) -> tuple[int, int | None] | None:
        """Read `{2}`, `{2,}`, `{,3}` or `{2,3}`; anything else in braces is literal text."""
        end = self._pattern.find("}", self._at)
        if self._next() != "{" or end < 0:
            return None
        first, comma, last = self._pattern[self._at + 1 : end].partition(",")
        if not all(part.isdecimal() or not part for part in (first, last)) or not (first or comma):
            return None
        if len(first) > 5 or len(last) > 5:
            raise self.fault("the repetition count is too large")
        self._at = end + 1
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        if most is not None and most < least:
            raise self.fault("the minimum of a repetition exceeds its maximum")
        return least, most

    def _atom(self, depth: int) -> Fragment:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return [_Instruction(accepts=self._set())]
        if char == ".":
            return [_Instruction(accepts=lambda other: other != "\n")]
        if char in "^$":
            return [_Instruction(condition=_CONDITIONS[char])]
        if char in "*+?":
            raise self.fault("a repetition has nothing to repeat")
        if char != "\\":
            return [_Instruction(accepts=char.__eq__)]
        if self._next() in ("A", "Z", "b", "B"):
            return [_Instruction(condition=_CONDITIONS[self._take()])]
        return [_Instruction(accepts=self._escaped())]

    def _group(self, depth: int) -> Fragment:
        if self._skip("?") and not self._skip(":"):
            end = self._pattern.find(">", self._at)
            if self._pattern[self._at : self._at + 2] != "P<" or end < 0:
                raise self.fault("this kind of group is not supported")
            self._at = end + 1
        fragment = self.alternatives(depth + 1)
        if not self._skip(")"):
            raise self.fault("the group is not closed")
        return fragment

    def _escaped(self) -> Accepts:
        """Read the character after a backslash."""
        char = self._take()
        if char.lower() in _CLASSES:
            inside = _CLASSES[char.lower()]
            return inside if char.islower() else lambda other: not inside(other)
        if char in _CONTROLS:
            return _CONTROLS[char].__eq__
        if not char or char.isalnum():
            raise self.fault("this escape is not supported")
        return char.__eq__

    def _set(self) -> Accepts:
        """Read a character set in square brackets."""
        is_negated = self._skip("^")
        parts: list[Accepts] = []
        while not (self._next() == "]" and parts):
            if self.is_at_end:
                raise self.fault("the character set is not closed")
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
            raise self.fault("a character range cannot begin with an escape")
        self._take()
        last = self._take()
        if last == "\\" or last < first:
            raise self.fault("the character range is empty or ends with an escape")
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
                "the compiled pattern is too large",
                expected=f"at most {MAX_INSTRUCTIONS} instructions",
                found=self._pattern,
            )


def _is_word_boundary(text: str, at: int) -> bool:
    word = _CLASSES["w"]
    before, after = text[at - 1 : at] if at else "", text[at : at + 1]
    return (before != "" and word(before)) != (after != "" and word(after))
