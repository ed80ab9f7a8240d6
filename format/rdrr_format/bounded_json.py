"""JSON of strangers: read only after it was found small enough to hold.

A parser builds an object for every value before anybody can look at it, so a few megabytes of
`[],[],` cost a gigabyte. Here the brackets and commas outside of strings are counted first, which
takes no memory worth mentioning.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.errors import FormatError

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PIECE = 1 << 18
"""Bytes of a text that are counted at a time."""

_Signs = npt.NDArray[np.uint8]

Pairs = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class JsonBounds:
    """What a JSON text may cost.

    Attributes:
        size: Bytes of the text.
        values: Entries of all lists and objects together, and the lists and objects themselves.
        depth: Levels of lists and objects inside each other.
        digits: Digits of a whole number.
    """

    size: int
    values: int
    depth: int = 64
    digits: int = 100


def parse_json(
    raw: bytes,
    bounds: JsonBounds,
    *,
    pairs: Callable[[Pairs], Any] = dict,
    constants: bool = True,
) -> Any:
    """Parse a JSON text in UTF-8.

    Args:
        raw: The text.
        bounds: What it may cost.
        pairs: Makes an object of its keys and values.
        constants: Whether NaN and Infinity may stand for numbers.

    Raises:
        FormatError: It is not JSON, or goes beyond a bound.
    """
    check_bounds(raw, bounds)

    def whole(digits: str) -> int:
        if len(digits) > bounds.digits:
            raise _beyond("a number has too many digits", bounds.digits, len(digits))
        return int(digits)

    try:
        value = json.loads(
            raw.decode("utf-8-sig"),
            object_pairs_hook=pairs,
            parse_int=whole,
            parse_constant=float if constants else _no_constant,
        )
        if _SURROGATE.search(raw):  # half of a pair can be escaped in JSON, and never written
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise FormatError("not UTF-8", found=f"another byte at {error.start}") from error
    except UnicodeEncodeError as error:
        raise FormatError("half of a surrogate pair", expected="Unicode text") from error
    except ValueError as error:
        raise FormatError("not JSON", found=error) from error
    return value


def unique_pairs(pairs: Pairs) -> dict[str, Any]:
    """An object of keys that are all different.

    Raises:
        FormatError: A key stands twice, of which JSON readers keep either silently.
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise FormatError("a key stands twice in one object", found=twice)
    return made


def check_bounds(raw: bytes, bounds: JsonBounds) -> None:
    """Count what a text would cost, without parsing it.

    Raises:
        FormatError: It goes beyond a bound.
    """
    if len(raw) > bounds.size:
        raise _beyond("the JSON text is too long", f"{bounds.size} bytes", f"{len(raw)} bytes")
    counter = _Counter()
    for start in range(0, len(raw), _PIECE):
        counter.count(np.frombuffer(raw, np.uint8, min(_PIECE, len(raw) - start), start))
        if counter.values > bounds.values:
            raise _beyond("the JSON text holds too many values", bounds.values, counter.values)
        if counter.deepest > bounds.depth:
            raise _beyond(
                "the JSON text is nested too deeply", f"{bounds.depth} levels", counter.deepest
            )


class _Counter:
    """Counts values and depth of a text that is given piece by piece.

    Up to the first error of the text, which is where a parser stops, a quote begins or ends a
    string if an even number of backslashes stands before it.

    Attributes:
        values: Values so far.
        deepest: Most levels so far.
    """

    def __init__(self) -> None:
        self.values = 1
        self.deepest = 0
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def count(self, piece: _Signs) -> None:
        """Take the next bytes."""
        quotes = (piece == ord('"')) & ~self._escaped(piece)
        inside = np.logical_xor.accumulate(quotes) ^ self._in_string
        self._in_string = bool(inside[-1])
        opening = ((piece == ord("[")) | (piece == ord("{"))) & ~inside
        closing = ((piece == ord("]")) | (piece == ord("}"))) & ~inside
        commas = (piece == ord(",")) & ~inside
        self.values += int(np.count_nonzero(opening) + np.count_nonzero(commas))
        levels = np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
        self.deepest = max(self.deepest, self._depth + int(levels.max()))
        self._depth += int(levels[-1])

    def _escaped(self, piece: _Signs) -> npt.NDArray[np.bool_]:
        """Which bytes stand behind an odd number of backslashes."""
        escaped = np.zeros(len(piece), np.bool_)
        backslashes = piece == ord("\\")
        if self._is_escaped or backslashes.any():
            places = np.arange(len(piece))
            others = np.maximum.accumulate(np.where(backslashes, -1, places))
            runs = places - others + (self._is_escaped & (others < 0))
            escaped[0], escaped[1:] = self._is_escaped, runs[:-1] & 1
            self._is_escaped = bool(runs[-1] & 1)
        return escaped


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _beyond(message: str, bound: object, found: object) -> FormatError:
    return FormatError(message, expected=f"at most {bound}", found=found)
