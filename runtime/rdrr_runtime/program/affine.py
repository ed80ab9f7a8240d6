"""Joining what was stated at several contexts into one statement.

Numbers that differ must be affine in the context, up to a largest value: decoding splits the keys
among more workgroups in longer contexts, but not among more than there is use for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdrr_format.errors import FormatError

from rdrr_runtime.program.amounts import Growing

Samples = Sequence[tuple[int, Any]]
"""JSON values, each with the context at which it holds."""


def joined(samples: Samples, multiple: int, where: str = "program") -> Any:
    """Return JSON values in which the numbers that differ are affine in the context.

    The first two contexts determine such a number, and the last one what it grows to, if it ends
    there to grow. The others are checked against it.

    Args:
        samples: Statements at different contexts, of which there are two or more, in order.
        multiple: The contexts are multiples of this, and growth is that of as many slots.
        where: Path of the value, for messages.

    Raises:
        FormatError: The statements differ in more than numbers, or a number is not affine.
    """
    first = samples[0][1]
    if all(value == first for _, value in samples):
        return first
    if all(isinstance(value, dict) and value.keys() == first.keys() for _, value in samples):
        return {key: joined(_each(samples, key), multiple, f"{where}.{key}") for key in first}
    if all(isinstance(value, list) and len(value) == len(first) for _, value in samples):
        return [
            joined(_each(samples, index), multiple, f"{where}.{index}")
            for index in range(len(first))
        ]
    if any(type(value) is not int for _, value in samples):
        raise _not_affine(samples, where)
    return _affine(samples, multiple, where)


def _affine(samples: Samples, multiple: int, where: str) -> dict[str, int]:
    """Return a number by its growth between the first two contexts, checked at the others."""
    (least, low), (other, high) = samples[:2]
    growth, rest = divmod((high - low) * multiple, other - least)
    value = low - growth * (least // multiple)
    for most in (None, samples[-1][1]):
        affine = Growing(value=value, growth=growth, most=most)
        if not rest and all(
            stated == affine.at(context // multiple) for context, stated in samples
        ):
            return affine.model_dump(exclude_none=True)
    raise _not_affine(samples, where)


def _each(samples: Samples, key: Any) -> Samples:
    return [(context, value[key]) for context, value in samples]


def _not_affine(samples: Samples, where: str) -> FormatError:
    """Return the error for a value that a program cannot state for a range of contexts."""
    values = ", ".join(f"{_short(value)} at {context}" for context, value in samples)
    return FormatError(
        "the model cannot have one program for these contexts: a value does not grow with them",
        where=where,
        expected="a number that is affine in the context, up to a largest value",
        found=values,
        hint="use a smaller range of contexts",
    )


def _short(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, (list, dict)) else str(value)[:40]
