"""Whom a package is for: all that rdrr reads, or what the public runtime (DOPPLER) loads today.

That runtime has kernels for Q4_K in rows and for F16, so the profile `doppler` stores nothing
else but F32 where F16 would overflow; embeddings, head, norms and biases are F16. It hashes with
SHA-256 and knows no compression. What would leave this is refused, not overruled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from rdrr_format.errors import UsageError
from rdrr_format.layouts import Layout

from rdrr_converter.overrides import parse_overrides
from rdrr_converter.recipes import RECIPES, Recipe

if TYPE_CHECKING:
    from rdrr_converter.options import Options

DOPPLER = "doppler"

PROFILES: Mapping[str, Mapping[str, Recipe]] = MappingProxyType(
    {
        "rdrr": RECIPES,
        DOPPLER: MappingProxyType(
            {
                recipe.name: recipe
                for recipe in (
                    Recipe("q4_k_m", "Q4_K_M", "q4k", "Q4_K", "F16", embeddings="F16", small="F16"),
                    Recipe("f16", "F16", "f16", "F16", "F16", small="F16"),
                )
            }
        ),
    }
)
"""The recipes of each profile."""

_DOPPLER_TYPES = ("Q4_K", "F16", "BF16", "F32")


def check_profile(options: Options) -> None:
    """Refuse options that the profile contradicts.

    Raises:
        UsageError: There is no such profile, or an option does not go with it.
    """
    if options.profile not in PROFILES:
        raise UsageError(
            "--profile has no such value", expected=", ".join(PROFILES), found=options.profile
        )
    if options.quantize in RECIPES and options.quantize not in PROFILES[options.profile]:
        raise _contradiction("--quantize", " or ".join(PROFILES[options.profile]), options.quantize)
    if options.profile == DOPPLER:
        for option, expected, found in _wanted(options):
            if found != expected:
                raise _contradiction(option, expected, found)
        for override in parse_overrides(options.tensor_types):
            if override.dtype.name not in _DOPPLER_TYPES:
                raise _contradiction("--tensor-type", ", ".join(_DOPPLER_TYPES), override)


def _wanted(options: Options) -> Iterator[tuple[str, str, str]]:
    """Options with the value that the profile wants, and the one that is given."""
    yield "--q4k-layout", Layout.ROW.value, options.block_layout.value
    yield "--transpose-weights", "absent", "given" if options.transpose_weights else "absent"
    yield "--k-tail", "pad", options.k_tail
    yield "--compress", "absent", options.compress or "absent"
    yield "--hash", "sha256", options.hash_algorithm


def _contradiction(option: str, expected: str, found: object) -> UsageError:
    return UsageError(
        f"--profile {DOPPLER} contradicts {option}",
        expected=expected,
        found=found,
        hint="leave one of the two out",
    )
