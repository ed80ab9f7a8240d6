"""`--tensor-type`: storage types that the user gives by patterns of tensor names.

A block type goes to matrices only: what the recipes keep in F32 because it is small (norms,
biases, routers) can get another scalar type, never blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DType, parse_dtype
from rdrr_format.errors import FormatError, UsageError

_NO_BLOCKS = ("norm", "bias", "router")


@dataclass(frozen=True)
class Override:
    """One `REGEX=TYPE`.

    Attributes:
        pattern: Searched in canonical names.
        dtype: Type of the tensors that it finds.
    """

    pattern: re.Pattern[str]
    dtype: DType

    def takes(self, name: str, role: str) -> bool:
        """Whether it decides on a tensor."""
        fits = not (self.dtype.is_block and role in _NO_BLOCKS)
        return fits and self.pattern.search(name) is not None

    def __str__(self) -> str:
        return f"{self.pattern.pattern}={self.dtype}"


def parse_overrides(types: Mapping[str, str]) -> tuple[Override, ...]:
    """Overrides in their order.

    Args:
        types: Regular expressions, with the name of a type each.

    Raises:
        UsageError: A pattern is no regular expression, or a type is unknown.
    """
    return tuple(Override(_pattern(text), _dtype(name)) for text, name in types.items())


def find_override(overrides: Iterable[Override], name: str, role: str) -> Override | None:
    """The last override that decides on a tensor."""
    found = [override for override in overrides if override.takes(name, role)]
    return found[-1] if found else None


def check_all_used(overrides: Iterable[Override], tensors: Mapping[str, str]) -> None:
    """Refuse overrides that mean nothing.

    Args:
        overrides: All of them.
        tensors: Roles of the package's tensors, by their names.

    Raises:
        UsageError: One decides on no tensor.
    """
    for override in overrides:
        if any(override.takes(name, role) for name, role in tensors.items()):
            continue
        small = any(override.pattern.search(name) for name in tensors)
        raise UsageError(
            "`tensor_types` matches no tensor" + (" that can be stored in blocks" if small else ""),
            expected=f"a part of a name such as {next(iter(tensors))}",
            found=override,
            hint="norms, biases and routers take F32, F16 or BF16"
            if small
            else "`dry_run` lists all names",
        )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            "`tensor_types` has a pattern that is not a regular expression",
            expected="REGEX=TYPE",
            found=f"{text}: {error}",
        ) from error


def _dtype(name: str) -> DType:
    try:
        dtype = parse_dtype(name)
    except FormatError:
        dtype = None
    if dtype is None or dtype.name not in CODECS:
        raise UsageError("`tensor_types` has no such type", expected=", ".join(CODECS), found=name)
    return dtype
