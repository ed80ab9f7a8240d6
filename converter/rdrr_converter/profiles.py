"""Whom a package is for: all that rdrr reads, or what the public runtime (DOPPLER) loads today.

That runtime has kernels for Q4_K in rows and for F16, so the profile `doppler` stores nothing
else but F32 where F16 would overflow; embeddings, head, norms and biases are F16. It hashes with
SHA-256 and knows no compression. What would leave this is refused, not overruled, in
`rdrr_converter.check_options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from rdrr_converter.recipes import RECIPES, Recipe

DOPPLER = "doppler"

ProfileName = Literal["rdrr", "doppler"]
"""The keys of `PROFILES`, for annotations."""

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

DOPPLER_TYPES = ("Q4_K", "F16", "BF16", "F32")
"""Storage types that the public runtime reads."""
