"""JSON values of any format that differ from sound ones in a few positions."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Path = tuple[Any, ...]

CONTROL = "\x1b]0;owned\x07\u202e\x00\x9b\r\n"
"""Sets the window title, reverses the text direction, ends a line."""

NUMBERS = (0, 1, -1, 2, 2**31, 2**32, 2**53, 2**63, 10**18, 10**19, 10**30, 0.5, -0.0, 1e-320,
           1e308, float("inf"), float("nan"))  # fmt: skip
TEXTS = ("", CONTROL, "x" * 5000, "\ud800", "../x", "a\0b", "/dev/zero", "é" * 300, "1", "null",
         "row", "column", "flat", "Q4_K_M", "F32", "Q8_0", "F8_E4M3", "llama3", "yarn", "relu",
         "sliding_attention", "{{ x }}", "(a+)+(?=b)$")  # fmt: skip

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.integers(-(2**70), 2**70),
    st.sampled_from(TEXTS),
    st.text(max_size=12),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=6,
)
DEEP = st.sampled_from([3, 40, 70, 500, 3000])


@dataclass(frozen=True)
class Base:
    """A sound value.

    Attributes:
        text: The value as JSON, from which each case starts.
        paths: The path of every value inside it.
    """

    text: str
    paths: tuple[Path, ...]


def base(value: Any) -> Base:
    """Return a sound value with the paths of all values inside it."""
    return Base(json.dumps(value), tuple(paths_in(value)) or ((),))


def paths_in(value: Any, before: Path = ()) -> list[Path]:
    """Return the path of every value inside a JSON value."""
    paths: list[Path] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        paths.append((*before, key))
        if isinstance(inner, (dict, list)):
            paths += paths_in(inner, (*before, key))
    return paths


@st.composite
def edited(
    draw: st.DrawFn,
    bases: Sequence[Base],
    values: st.SearchStrategy[Any] = VALUES,
    most: int = 4,
) -> Any:
    """Draw one of the bases with one to `most` edits.

    Args:
        draw: Hypothesis' draw function.
        bases: Sound values.
        values: Strategy for the values that are inserted.
        most: Largest number of edits.
    """
    chosen = draw(st.sampled_from(bases))
    value = json.loads(chosen.text)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(chosen.paths))
        _edit(draw, value, path, chosen, values)
    return value


def _edit(
    draw: st.DrawFn, value: Any, path: Path, chosen: Base, values: st.SearchStrategy[Any]
) -> None:
    kind = draw(
        st.sampled_from(["put", "put", "put", "remove", "move", "rename", "repeat", "nest"])
    )
    try:
        parent = at(value, path[:-1])
        last = path[-1]
        if kind == "put":
            # Copy the drawn value: it may be one of the sound ones, and later edits change it.
            parent[last] = copy.deepcopy(draw(values))
        elif kind == "remove":
            del parent[last]
        elif kind == "move":  # a value from elsewhere: of a valid type, but with the wrong meaning
            parent[last] = at(json.loads(chosen.text), draw(st.sampled_from(chosen.paths)))
        elif kind == "rename" and isinstance(parent, dict):
            parent[draw(st.text(max_size=8) | st.sampled_from(TEXTS))] = parent.pop(last)
        elif kind == "repeat" and isinstance(parent, list):
            parent[last:last] = [parent[last]] * draw(st.sampled_from([1, 2, 70]))
        elif kind == "nest":
            for _ in range(draw(DEEP)):
                parent[last] = [parent[last]]
    except (KeyError, IndexError, TypeError):
        return  # an earlier edit removed this path


def at(value: Any, path: Path) -> Any:
    """Return the value at a path."""
    for step in path:
        value = value[step]
    return value


def text_of(value: Any) -> bytes:
    """Encode as JSON at any nesting depth, with unpaired surrogates kept."""
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        return b"[" * 3000


def edited_text(
    bases: Sequence[Base], values: st.SearchStrategy[Any] = VALUES, most: int = 4
) -> st.SearchStrategy[bytes]:
    """Return a strategy for the JSON texts of edited values."""
    return edited(bases, values, most).map(text_of)
