"""Covers: few cases of parametrized tests that have all values of the parameters of each function.

The products of kernels, types and layouts are too many for a run before each commit. Most faults
show with one value of one parameter, in whatever combination. That another function of the file has
the value does not suffice: seven of fifty faults in kernels were missed then. Types of weights that
kernels read in the same way (`ALIKE`) stand for each other in a function, but not in a file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

import pytest

Feature = tuple[str, Hashable]
"""The name of a parameter, or of a part of one, and what its value is like."""

SMALL = range(-1, 5)
"""Numbers that count as values of their own; of larger ones the divisors matter."""


ALIKE = {"Q4_1": "Q5_1", "Q5_0": "Q4_0", "Q5_K": "Q4_K", "BF16": "F16"}
"""Types of weights that differ from another one in the bits of a value alone."""

STORED = {*ALIKE, *ALIKE.values()}


def cover(tests: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Choose tests greedily, until each feature of each function occurs.

    The choice follows from the tests and their order alone.
    """
    features_of = {test: {*_to_cover(test)} for test in tests}
    missing = set().union(*features_of.values())
    chosen = []
    while missing:
        test = max(features_of, key=lambda candidate: len(features_of[candidate] & missing))
        chosen.append(test)
        missing -= features_of.pop(test)
    return chosen


def _to_cover(test: pytest.Item) -> Iterator[Hashable]:
    """Yield the values that its function must have somewhere, and types that its file must have."""
    yield function_of(test)
    for name, value in features(test):
        kind, text = value if isinstance(value, tuple) else ("", None)
        if kind == "str" and text in STORED:
            yield str(test.path), text
            value = ALIKE.get(text, text)
        yield function_of(test), name, value


def features(test: pytest.Item) -> set[Feature]:
    """Return what the parameters of a test are like; the empty set if it has none."""
    call = getattr(test, "callspec", None)
    if call is None:
        return set()
    return {
        feature
        for name, value in call.params.items()
        for feature in _features(name, value, call.indices.get(name, 0))
    }


def function_of(test: pytest.Item) -> str:
    """Return the file and the name of the function of a test."""
    return test.nodeid.split("[")[0]


def _features(name: str, value: object, otherwise: Hashable) -> Iterator[Feature]:
    """Yield the features of a value: those of its parts, or itself.

    Args:
        name: Name of the parameter, or of the part.
        value: What a test is called with.
        otherwise: What stands for a value that has no parts and cannot be compared.
    """
    parts = _parts(value)
    if parts:
        for key, part in parts.items():
            yield from _features(f"{name}.{key}", part, type(part).__name__)
    else:
        yield name, _kind(value, otherwise)


def _parts(value: object) -> Mapping[object, object]:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    return {}


def _kind(value: object, otherwise: Hashable) -> Hashable:
    """Return a value as far as it matters: of a large integer, what divides it."""
    if isinstance(value, int) and not isinstance(value, Enum) and value not in SMALL:
        return next((f"of {divisor}" for divisor in (32, 2) if value % divisor == 0), "odd")
    if value is None or isinstance(value, (str, bytes, int, float, Enum)):
        return type(value).__name__, value if value == value else "nan"
    return getattr(value, "__qualname__", otherwise)
