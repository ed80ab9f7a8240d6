"""Profiles: the recipes for rdrr itself, and for the public runtime (DOPPLER) as it is today.

The profile `doppler` stores Q4_K in the row layout and F16, and F32 where F16 would overflow;
embeddings, head and norms are F16, and biases F32, as the runtime reads them. Shards are hashed
with SHA-256 and not compressed. Options that contradict the profile are refused in
`rdrr_converter.check_options` rather than ignored, and models that the runtime would compute
differently in `rdrr_converter.manifest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rdrr_manifests.profiles import DOPPLER, ProfileName

from rdrr_converter.recipes import RECIPES, Recipe

PROFILES: Mapping[ProfileName, Mapping[str, Recipe]] = MappingProxyType(
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
