"""JSON of strangers: read only after it was found small enough to hold.

A parser builds an object for every value before anybody can look at it, so a few megabytes of
`[],[],` cost a gigabyte. Here the brackets and commas outside of strings are counted first, which
takes no more memory than the text itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdrr_format.errors import FormatError

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_STRUCTURE = bytes(sorted(set(range(256)) - set(b"[]{},")))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OPENING, _CLOSING = b"[{", b"]}"

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
        found = f"at byte {error.start}"
        raise FormatError("not text in UTF-8", found=found) from error
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
    # Up to the first error of a text, which is where a parser stops, its strings are these.
    structure = _STRING.sub(b"", raw).translate(None, _NO_STRUCTURE)
    values = 1 + sum(structure.count(sign) for sign in (b"[", b"{", b","))
    if values > bounds.values:
        raise _beyond("the JSON text holds too many values", bounds.values, values)
    depth = _depth(structure)
    if depth > bounds.depth:
        raise _beyond("the JSON text is nested too deeply", f"{bounds.depth} levels", depth)


def _depth(structure: bytes) -> int:
    signs = np.frombuffer(structure, np.uint8)
    steps = np.isin(signs, list(_OPENING)).astype(np.int8)
    steps -= np.isin(signs, list(_CLOSING))
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _beyond(message: str, bound: object, found: object) -> FormatError:
    return FormatError(message, expected=f"at most {bound}", found=found)
