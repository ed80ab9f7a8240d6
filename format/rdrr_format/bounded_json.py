"""Parse untrusted JSON, after checking that the result will fit into memory.

A parser builds a Python object for every value, so a few megabytes of `[],[],` become a gigabyte of
objects. This module first counts the brackets and commas outside of strings, in chunks and without
building anything, and refuses a text with too many of them.
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
"""Bytes of a text that are scanned at a time."""

_Characters = npt.NDArray[np.uint8]

Pairs = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class JsonBounds:
    """Limits of a JSON text.

    Attributes:
        size: Largest size of the text in bytes.
        values: Largest number of lists, objects and their entries together.
        depth: Deepest nesting of lists and objects.
        digits: Largest number of digits of an integer.
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
        bounds: Limits that the text must keep.
        pairs: Makes the value of a JSON object from its keys and values.
        constants: Whether to accept NaN and Infinity as numbers.

    Raises:
        FormatError: The text is not JSON, or exceeds a limit.
    """
    check_bounds(raw, bounds)

    def parse_integer(digits: str) -> int:
        if len(digits) > bounds.digits:
            raise _beyond("a number has too many digits", bounds.digits, len(digits))
        return int(digits)

    try:
        value = json.loads(
            raw.decode("utf-8-sig"),
            object_pairs_hook=pairs,
            parse_int=parse_integer,
            parse_constant=float if constants else _no_constant,
        )
        # An escape can stand for half of a surrogate pair, which UTF-8 cannot represent.
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise FormatError("not UTF-8", found=f"an invalid byte at {error.start}") from error
    except UnicodeEncodeError as error:
        raise FormatError(
            "the text has half of a surrogate pair", expected="Unicode text"
        ) from error
    except ValueError as error:
        raise FormatError("not JSON", found=error) from error
    return value


def unique_pairs(pairs: Pairs) -> dict[str, Any]:
    """Return the dictionary of some keys and values, for `parse_json`.

    Raises:
        FormatError: A key occurs twice; JSON parsers differ in which of the values they keep.
    """
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise FormatError("a key occurs twice in one object", found=twice)
    return unique


def check_bounds(raw: bytes, bounds: JsonBounds) -> None:
    """Check a text against its limits without parsing it.

    Raises:
        FormatError: The text exceeds a limit.
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
    """Counts the values and the nesting depth of a text that arrives in chunks.

    A quote begins or ends a string if an even number of backslashes precedes it. That holds up to
    the first syntax error, where a parser stops anyway.

    Attributes:
        values: Number of values so far.
        deepest: Deepest nesting so far.
    """

    def __init__(self) -> None:
        self.values = 1
        self.deepest = 0
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def count(self, piece: _Characters) -> None:
        """Count the values in the next bytes of the text."""
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

    def _escaped(self, piece: _Characters) -> npt.NDArray[np.bool_]:
        """Return a mask of the bytes that follow an odd number of backslashes."""
        escaped = np.zeros(len(piece), np.bool_)
        backslashes = piece == ord("\\")
        if self._is_escaped or backslashes.any():
            # The length of the run of backslashes up to each byte, of which only the parity counts,
            # also that of a run which the piece before began.
            indices = np.arange(len(piece))
            others = np.maximum.accumulate(np.where(backslashes, -1, indices))
            runs = indices - others + (self._is_escaped & (others < 0))
            escaped[0], escaped[1:] = self._is_escaped, runs[:-1] & 1
            self._is_escaped = bool(runs[-1] & 1)
        return escaped


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _beyond(message: str, bound: object, actual: object) -> FormatError:
    return FormatError(message, expected=f"at most {bound}", found=actual)
