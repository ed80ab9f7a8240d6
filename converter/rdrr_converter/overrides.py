"""`--tensor-type`: storage types that the user chooses by patterns of tensor names.

Block types apply to matrices only. Norms, biases and routers, which the recipes keep in F32
because they are small, can be given another scalar type but no block type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DType, parse_dtype
from rdrr_format.errors import FormatError, UsageError

_NO_BLOCKS = ("norm", "bias", "router", "other")


@dataclass(frozen=True)
class Override:
    """One `REGEX=TYPE`.

    Attributes:
        pattern: Regular expression that is searched for in canonical names.
        dtype: Storage type of the tensors whose names match.
    """

    pattern: re.Pattern[str]
    dtype: DType

    def applies_to(self, name: str, role: str) -> bool:
        """Return whether this override sets the type of a tensor."""
        fits = not (self.dtype.is_block and role in _NO_BLOCKS)
        return fits and self.pattern.search(name) is not None

    def __str__(self) -> str:
        return f"{self.pattern.pattern}={self.dtype}"


def parse_overrides(types: Mapping[str, str]) -> tuple[Override, ...]:
    """Parse overrides, keeping their order.

    Args:
        types: Names of storage types by regular expression.

    Raises:
        UsageError: A pattern is not a valid regular expression, or a type is unknown.
    """
    return tuple(Override(_pattern(text), _dtype(name)) for text, name in types.items())


def find_override(overrides: Iterable[Override], name: str, role: str) -> Override | None:
    """Return the last override that applies to a tensor; None if none does."""
    matching = [override for override in overrides if override.applies_to(name, role)]
    return matching[-1] if matching else None


def check_all_used(overrides: Iterable[Override], tensors: Mapping[str, str]) -> None:
    """Check that every override applies to some tensor.

    Args:
        overrides: All overrides.
        tensors: Role of each tensor of the package, by its name.

    Raises:
        UsageError: An override applies to no tensor.
    """
    for override in overrides:
        if any(override.applies_to(name, role) for name, role in tensors.items()):
            continue
        small = any(override.pattern.search(name) for name in tensors)
        raise UsageError(
            "`tensor_types` matches no tensor" + (" that can be stored in blocks" if small else ""),
            expected=f"a pattern that matches a name such as {next(iter(tensors))}",
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
            "`tensor_types` has an invalid regular expression",
            expected="REGEX=TYPE",
            found=f"{text}: {error}",
        ) from error


def _dtype(name: str) -> DType:
    try:
        dtype = parse_dtype(name)
    except FormatError:
        dtype = None
    if dtype is None or dtype.name not in CODECS:
        raise UsageError(
            "`tensor_types` names an unknown storage type", expected=", ".join(CODECS), found=name
        )
    return dtype
